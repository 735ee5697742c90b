"""Hosts: every node resolves every other node by name and by address, even after a restart."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, enable_unit, write_file
from bootstrap.changes import Changes, change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Inventory, Node

MERGE = (Path(__file__).parent.parent / "scripts" / "merge-hosts.sh").read_text()

# Docker, and some cloud images, overwrite /etc/hosts at each start.
UNIT = """\
[Unit]
Description=Names of the cluster's nodes
DefaultDependencies=no
After=local-fs.target
Before=basic.target ssh.service slurmctld.service slurmdbd.service slurmd.service sackd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/muster/merge-hosts

[Install]
WantedBy=multi-user.target
"""


# Slurm's daemons look up the name of the address they listen on; without an answer, each start takes 10 s longer.
ANY_ADDRESS = "0.0.0.0 any-address\n"


def render_hosts(inventory: Inventory, own: Node) -> str:
    """Return the lines of /etc/hosts for all nodes, and on an adopted machine for its own host name.

    Debian gives a machine's own name the address 127.0.1.1, which programs of a job would tell the other nodes.
    """
    entries = [(node.address, node.name) for node in inventory.nodes]
    if own.adopted and own.adopted.hostname not in {node.name for node in inventory.nodes}:
        entries.append((own.address, own.adopted.hostname))
    return ANY_ADDRESS + "".join(f"{address} {name}\n" for address, name in entries)


def plan_hosts(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Merge the nodes' names into /etc/hosts, now and at every boot, and set the host name of machines of ours."""
    unit = write_file(facts, "/etc/systemd/system/muster-hosts.service", UNIT)
    todo = [
        *write_file(facts, "/etc/muster/hosts", render_hosts(desired.inventory, node)),
        *write_file(facts, "/etc/muster/merge-hosts", MERGE, 0o755),
        *unit,
    ]
    if todo or not facts.hosts_merged:
        merges = Changes(blocks=("/etc/hosts",))
        todo.append(Action("merge the names into /etc/hosts", "/etc/muster/merge-hosts", changes=merges))
    if unit or "muster-hosts" not in facts.enabled:
        enable = enable_unit("muster-hosts")
        todo.append(Action("enable muster-hosts", enable, changes=change_units("muster-hosts")))
    if facts.hostname != node.name and not node.adopted:
        todo.append(Action(f"set the host name to {node.name}", f"hostnamectl set-hostname {node.name}"))
    return todo


STEP = Step("hosts", "names and addresses of all nodes", plan_hosts, units=("muster-hosts",))
