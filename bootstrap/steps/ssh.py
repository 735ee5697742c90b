"""SSH: key logins only, host keys in known_hosts, and SSH between nodes without prompts."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, digest, remove_file, write_access_file, write_file, write_marker
from bootstrap.changes import UNRECORDED, Changes
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.isolation import list_admins
from bootstrap.steps.step import Step
from cluster.inventory import Inventory, Node

KEYS = "/etc/muster/keys"
SSHD_CONF = "/etc/ssh/sshd_config.d/10-muster.conf"
DEFAULT_PORT = 22

SSHD = f"""\
# Written by muster. The keys that muster manages are root's files; ~/.ssh/authorized_keys belongs to the user.
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile .ssh/authorized_keys {KEYS}/%u
MaxStartups 64:30:256
UseDNS no
UsePAM yes
"""

# Equivalent to `systemctl reload ssh`, which takes a second when many nodes share two cores. sshd closes its port while
# it reads its settings, and writes its process id when it listens again: who connects earlier is refused.
RELOAD_SSHD = """\
sshd -t
if [ -s /run/sshd.pid ]; then
  pid=$(cat /run/sshd.pid)
  rm /run/sshd.pid
  kill -HUP "$pid"
  for _ in $(seq 500); do
    if [ -s /run/sshd.pid ]; then break; fi
    sleep 0.02
  done
  # It did not come back. A restart leaves open sessions alone.
  [ -s /run/sshd.pid ] || systemctl restart ssh
else
  systemctl reload ssh
fi"""


def render_sshd(node: Node, desired: Desired) -> str:
    """Return sshd's settings: only admins log in to a controller that is not the login node."""
    if node.role != "controller" or not desired.spec.login.enabled:
        return SSHD
    return f"{SSHD}AllowUsers {' '.join(list_admins(desired.spec, node))}\n"


def render_known_hosts(inventory: Inventory) -> str:
    """Return ssh_known_hosts: a line per node, also for those that do not exist yet."""
    sets = "".join(f"{name} {key}\n" for node_set in inventory.sets for name, key in node_set.known_hosts.items())
    return "".join(f"{n.name},{_address(n)} {n.host_key}\n" for n in inventory.nodes) + sets


def plan_ssh(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write known hosts and the users' keys, and configure sshd."""
    todo = write_file(facts, "/etc/ssh/ssh_known_hosts", render_known_hosts(desired.inventory))
    # The operator, who has the cluster's key, is root on every node.
    todo += write_file(facts, f"{KEYS}/root", f"{desired.secrets.ssh_public_key}\n")
    for name, user in desired.spec.users.items():
        keys = "\n".join([desired.secrets.ssh_public_key, *user.ssh_keys]) + "\n"
        todo += write_file(facts, f"{KEYS}/{name}", keys)
        if node.role == "controller":
            todo += _plan_own_key(facts, desired, name)
    for path in facts.files:
        folder, _, name = path.rpartition("/")
        if folder == KEYS and name not in {"root", *desired.spec.users}:
            todo += remove_file(facts, path)
    return todo + plan_sshd(facts, render_sshd(node, desired))


def plan_sshd(facts: Facts, settings: str) -> list[Action]:
    """Write sshd's settings and load them; sessions that are open stay open."""
    todo = write_access_file(facts, SSHD_CONF, settings)
    if todo or facts.markers.get("ssh") != digest(settings):
        script = f"{RELOAD_SSHD}\n{write_marker('ssh', digest(settings))}"
        todo.append(Action("reload sshd", script, log="journalctl -u ssh", changes=Changes(units=("ssh",))))
    return todo


def _plan_own_key(facts: Facts, desired: Desired, name: str) -> list[Action]:
    home = facts.homes.get(name)
    if home and home.trusted:
        return []
    folder = shlex.quote(f"{desired.home(name)}/.ssh")
    comment = f"{name}@{desired.inventory.cluster}"
    # Run as the user: a file in the home may be a link to somewhere else, and root would write there.
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
    return [Action(f"create the key of {name} for SSH between nodes", script, changes=UNRECORDED)]


def _address(node: Node) -> str:
    return node.address if node.ssh_port == DEFAULT_PORT else f"[{node.address}]:{node.ssh_port}"


STEP = Step("ssh", "keys, known hosts, no passwords", plan_ssh)
