"""A small cluster as data, and the facts of its nodes before and after a plan is applied, without a machine."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from bootstrap.action import Action
from bootstrap.bundle import Bundle, pack_shared
from bootstrap.desired import Desired, Secrets
from bootstrap.facts.model import Facts, FileFact, Home, UserFact
from bootstrap.plan import Plan, plan_steps
from bootstrap.steps.packages import list_packages
from cluster.inventory import Inventory, Node, NodeGpus
from cluster.spec import ClusterSpec
from slurm.control.nodes import NodeState

ROOT = Path(__file__).parents[2]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICluster cluster"
GPUS = NodeGpus(count=2, devices=("/dev/fakegpu0", "/dev/fakegpu1"))


class UnchangedDesired(Desired):
    """A desired state that packs the hundreds of files of the repository once: they do not change while tests run."""

    @cached_property
    def bundle(self) -> Bundle:
        return _pack_once(self.root, self.environment)


def node(name: str, role: Any, last: int, **more: Any) -> Node:
    return Node(
        name=name,
        role=role,
        address=f"10.1.0.{last}",
        host_key=f"ssh-ed25519 AAAA{name}",
        machine_id=name,
        cpus=2,
        memory_mb=2048,
        **more,
    )


def inventory(*more: Node) -> Inventory:
    nodes = (
        node("controller", "controller", 10),
        node("login", "login", 11),
        node("gpu-1", "compute", 21, group="gpu", gpus=GPUS),
        node("gpu-2", "compute", 22, group="gpu", gpus=GPUS),
    )
    return Inventory(cluster="toy", target="local", nodes=(*nodes, *more))


def desired(*more: Node, **spec: Any) -> Desired:
    described = {"name": "toy", "target": "local", "groups": {"gpu": {"count": 2}}} | spec
    return UnchangedDesired(
        inventory(*more),
        ClusterSpec.model_validate(described),
        Secrets(b"k" * 1024, "password", KEY),
        ROOT,
    )


def bare(member: Node) -> Facts:
    """Return the facts of a node that has just started from the baked image."""
    return Facts(
        packages={name: "26.05.5-1" if "slurm" in name else "1" for name in list_packages(member)},
        enabled=frozenset({"ssh"}),
        active=frozenset({"ssh"}),
        loaded=frozenset({"ssh"}),
        hostname=member.name,
        container=True,
        mounts={"/shared": "ext4"},
        cgroup="v1",
    )


def bare_all(target: Desired) -> dict[str, Facts]:
    return {n.name: bare(n) for n in target.inventory.nodes}


def done_all(target: Desired) -> dict[str, Facts]:
    """Return the facts of a cluster after every action that a bare cluster needs was run."""
    facts = bare_all(target)
    planned = plan_steps(facts, target)
    return {n.name: _done(n, facts[n.name], planned, target) for n in target.inventory.nodes}


def titles(planned: Plan, name: str, step: str) -> list[str]:
    return [action.title for action in planned[name][step].actions]


@cache
def _pack_once(root: Path, environment: str) -> Bundle:
    return pack_shared(root, environment)


def _done(member: Node, facts: Facts, planned: Plan, target: Desired) -> Facts:
    actions = [a for p in planned[member.name].values() for a in p.actions]
    markers = dict(pair[::-1] for a in actions for pair in re.findall(r"echo (\w+) > /var/lib/muster/(\S+)", a.script))
    units = frozenset(u for a in actions for u in re.findall(r"multi-user.target.wants/([\w-]+)\.service", a.script))
    users = {
        name: UserFact(user.uid, "muster", target.home(name), "/bin/bash") for name, user in target.spec.users.items()
    }
    facts = replace(
        facts,
        files=dict(_written(a) for a in actions if a.title.startswith("write ")),
        markers=markers,
        enabled=facts.enabled | units,
        active=facts.active | units,
        users=users,
        hosts_merged=True,
        job_network="closed",
    )
    if member.role != "controller":
        return facts
    people = target.spec.users
    return replace(
        facts,
        homes={name: Home(user.uid, True) for name, user in people.items()},
        environment_complete=True,
        bundle=target.bundle.digest,
        slurm_nodes={n.name: NodeState("IDLE") for n in target.inventory.compute},
        associations=frozenset({("toy", "muster", ""), *(("toy", "muster", name) for name in people)}),
        admins=frozenset(name for name, user in people.items() if user.admin),
    )


def _written(action: Action) -> tuple[str, FileFact]:
    chmod, owner = re.search(r"chmod (\d+)", action.script), re.search(r"chown (\S+)", action.script)
    secret = "umask 077" in action.script
    mode = int(chmod[1], 8) if chmod else 0o600 if secret else 0o644
    path = action.title.removeprefix("write ")
    return path, FileFact(sha256(action.data).hexdigest(), mode, owner[1] if owner else "root:root")
