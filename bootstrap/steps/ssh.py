"""ssh: keys only, host keys known in advance, and the job user moves between nodes without a question."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, mark, remove, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Inventory, Node

KEYS = "/etc/muster/keys"

SSHD = f"""\
# Written by muster. Keys we manage are root's own files; ~/.ssh/authorized_keys stays the user's.
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile .ssh/authorized_keys {KEYS}/%u
MaxStartups 64:30:256
UseDNS no
"""


def known_hosts(inventory: Inventory) -> str:
    sets = "".join(f"{s.group}-* {s.host_key}\n" for s in inventory.sets if s.host_key)
    return "".join(f"{n.name},{_address(n)} {n.host_key}\n" for n in inventory.nodes) + sets


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    todo = write(facts, "/etc/ssh/ssh_known_hosts", known_hosts(desired.inventory))
    for name, user in desired.spec.users.items():
        todo += write(facts, f"{KEYS}/{name}", "\n".join([desired.secrets.ssh_public_key, *user.ssh_keys]) + "\n")
        if node.role == "controller":
            todo += _own_key(facts, desired, name)
    for path in facts.files:
        folder, _, name = path.rpartition("/")
        if folder == KEYS and name not in desired.spec.users:
            todo += remove(facts, path)
    return todo + _daemon(facts)


def _own_key(facts: Facts, desired: Desired, name: str) -> list[Action]:
    home = facts.homes.get(name)
    if home and home.trusted:
        return []
    folder = shlex.quote(f"{desired.home(name)}/.ssh")
    comment = f"{name}@{desired.inventory.cluster}"
    # As the user: what stands in a home may be a link to somewhere else, and root would write there.
    script = f"""\
cd /
runuser -u {name} -- sh -eu <<'AS_USER'
mkdir -p -m 700 {folder}
cd {folder}
[ -f id_ed25519 ] || ssh-keygen -qt ed25519 -N '' -C {comment} -f id_ed25519
[ -f id_ed25519.pub ] || ssh-keygen -y -f id_ed25519 > id_ed25519.pub
touch authorized_keys
grep -qxFf id_ed25519.pub authorized_keys || cat id_ed25519.pub >> authorized_keys
chmod 600 authorized_keys
AS_USER"""
    return [Action(f"make the key of {name} for SSH between nodes", script)]


def _daemon(facts: Facts) -> list[Action]:
    todo = write(facts, "/etc/ssh/sshd_config.d/10-muster.conf", SSHD)
    if todo or facts.markers.get("ssh") != digest(SSHD):
        # What `systemctl reload ssh` does, without a second's work for systemd when many nodes share two cores.
        reload = (
            'sshd -t\nif [ -s /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; else systemctl reload ssh; fi'
        )
        todo.append(Action("reload sshd", f"{reload}\n{mark('ssh', digest(SSHD))}", log="journalctl -u ssh"))
    return todo


def _address(node: Node) -> str:
    return node.address if node.ssh_port == 22 else f"[{node.address}]:{node.ssh_port}"  # noqa: PLR2004


STEP = Step("ssh", "keys, known hosts, no passwords", actions)
