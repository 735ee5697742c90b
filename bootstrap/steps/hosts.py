"""hosts: every node knows every other by name and by address, also after a restart."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, enable, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Inventory, Node

MERGE = (Path(__file__).parent.parent / "scripts" / "merge-hosts.sh").read_text()

# Docker writes /etc/hosts anew at each start; so do some cloud images.
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


# Slurm's daemons look up the name of the address they listen on; a resolver that cannot answer costs 10 s per start.
ANY = "0.0.0.0 any-address\n"


def names(inventory: Inventory) -> str:
    return ANY + "".join(f"{node.address} {node.name}\n" for node in inventory.nodes)


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    unit = write(facts, "/etc/systemd/system/muster-hosts.service", UNIT)
    todo = [
        *write(facts, "/etc/muster/hosts", names(desired.inventory)),
        *write(facts, "/etc/muster/merge-hosts", MERGE, 0o755),
        *unit,
    ]
    if todo or not facts.hosts_merged:
        todo.append(Action("merge the names into /etc/hosts", "/etc/muster/merge-hosts"))
    if unit or "muster-hosts" not in facts.enabled:
        todo.append(Action("enable muster-hosts", enable("muster-hosts")))
    if facts.hostname != node.name:
        todo.append(Action(f"set the host name to {node.name}", f"hostnamectl set-hostname {node.name}"))
    return todo


STEP = Step("hosts", "names of all nodes, both ways", actions)
