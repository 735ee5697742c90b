"""A target whose machines are files: the smallest target that implements the whole protocol.

It is outside the package, like a target of a third party: an entry point in the group `muster.targets` registers it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider

from cluster import names
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec, Issue
from cluster.spec.base import SpecModel, field
from cluster.spec.issue import error
from infra.home import Home, StackHome
from infra.plan import BuildPlan, PlannedNode, assemble, node_count
from infra.resources import access
from infra.resources.job_queue import JobQueue, NoQueue
from infra.targets.cost import Cost, Line
from infra.targets.facts import DAEMONS, Facts, Machine, Slurm, SlurmNode
from infra.targets.target import Built, Capabilities, Context, Deployment, Leftover, Leftovers, Target

Properties = dict[str, Any]


class Shelf(SpecModel):
    """The section `shelf` of the spec."""

    board: int = field("number of the board", "safe", default=0, ge=0, le=19, examples=[10])


class ShelfTarget(Target):
    """A target where every node is a file."""

    name = "shelf"
    capabilities = Capabilities(storage=frozenset({"existing"}))
    section = Shelf

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:
        for name, group in spec.groups.items():
            if node_count(group) > 8:
                message = f"{node_count(group)} machines do not fit on a board; allowed: 0 to 8"
                yield error("board_full", f"groups.{name}.count", message, "write `count: 8` or less")

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return assemble(spec, tuple(_nodes(spec)))

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def cost(self, spec: ClusterSpec) -> Cost:
        nodes = len(self.plan(spec).nodes)
        return Cost((Line("groups", "machines", nodes, 0.5 * nodes),))

    def build(self, plan: BuildPlan, context: Context) -> Built:
        options = pulumi.ResourceOptions(depends_on=[context.guard])
        machines = {node.name: ShelfMachine(plan.cluster, node.name, context.stack, options) for node in plan.nodes}
        serials = pulumi.Output.all(**{name: machine.serial for name, machine in machines.items()})
        inventory = serials.apply(lambda ids: _inventory(plan, ids).model_dump_json())
        addresses = serials.apply(lambda ids: dict.fromkeys(ids, "127.0.0.1"))
        files = AccessFiles(context, inventory, pulumi.ResourceOptions(depends_on=list(machines.values())))
        return Built(inventory, addresses, lambda: files.ready)

    def queue(self, deployment: Deployment) -> JobQueue:
        return NoQueue()

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:
        folder = _folder(inventory.cluster)
        states = {n.name: "running" if (folder / f"{n.name}.json").exists() else "gone" for n in inventory.nodes}
        machines = {name: Machine(state) for name, state in states.items()}
        nodes = {node.name: SlurmNode("idle") for node in inventory.compute}
        return Facts(inventory, inventory.nodes, machines, Slurm(nodes, daemons=dict.fromkeys(DAEMONS, "active")))

    def leftovers(self, deployment: Deployment) -> Leftovers:
        folder = _folder(deployment.cluster)
        return Leftovers([Leftover("machine", str(file), is_node=True) for file in sorted(folder.glob("*.json"))])

    def remove(self, leftover: Leftover, until: float) -> None:
        Path(leftover.name).unlink(missing_ok=True)


class ShelfMachineProvider(ResourceProvider):
    """The provider of ShelfMachine; a machine is a file in a folder of MUSTER_HOME."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        file = _folder(props["cluster"]) / f"{props['node']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        serial = uuid4().hex
        file.write_text(json.dumps({"serial": serial}))
        return CreateResult(str(file), {**props, "serial": serial})

    def read(self, id_: str, props: Properties) -> ReadResult:
        return ReadResult(id_, props) if Path(id_).exists() else ReadResult("", {})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaced = [key for key in ("cluster", "node", "stack") if olds.get(key) != news.get(key)]
        return DiffResult(changes=bool(replaced), replaces=replaced)

    def delete(self, id_: str, _props: Properties) -> None:
        Path(id_).unlink(missing_ok=True)


class ShelfMachine(Resource, module="shelf", name="ShelfMachine"):
    """A machine of the cluster."""

    serial: pulumi.Output[str]

    def __init__(self, cluster: str, node: str, stack: str, options: pulumi.ResourceOptions) -> None:
        properties = {"cluster": cluster, "node": node, "stack": stack, "serial": None}
        super().__init__(ShelfMachineProvider(), f"machine-{node}", properties, options)


class AccessFilesProvider(ResourceProvider):
    """The provider of AccessFiles: it writes the files from which commands read the running cluster."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        inventory = Inventory.model_validate_json(props["inventory"])
        spec = ClusterSpec.model_validate_json(props["spec"])
        folder = Home.of(os.environ).stack(props["stack"]).folder
        access.write(folder, access.files(folder, inventory, spec, "no key"))
        return CreateResult("access", {**props, "ready": {"nodes": len(inventory.nodes)}})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        changed = olds["inventory"] != news["inventory"]
        return DiffResult(changes=changed, replaces=["inventory"] if changed else [])


class AccessFiles(Resource, module="shelf", name="AccessFiles"):
    """The access files of the stack."""

    ready: pulumi.Output[dict[str, Any]]

    def __init__(self, context: Context, inventory: pulumi.Output[str], options: pulumi.ResourceOptions) -> None:
        spec = context.spec.model_dump_json()
        properties = {"inventory": inventory, "spec": spec, "stack": context.stack, "ready": None}
        super().__init__(AccessFilesProvider(), "access", properties, options)


def _nodes(spec: ClusterSpec) -> Iterator[PlannedNode]:
    yield PlannedNode(name=names.CONTROLLER, role="controller", cpus=1, memory_mb=512)
    for group, described in spec.groups.items():
        for number in range(1, node_count(described) + 1):
            name = names.member(group, number)
            yield PlannedNode(name=name, role="compute", group=group, cpus=1, memory_mb=512)


def _inventory(plan: BuildPlan, serials: dict[str, str]) -> Inventory:
    fields = {"name", "role", "group", "cpus", "memory_mb"}
    nodes = (
        Node(**node.model_dump(include=fields), address="127.0.0.1", host_key="none", machine_id=serials[node.name])
        for node in plan.nodes
    )
    return Inventory(cluster=plan.cluster, target=plan.target, nodes=tuple(nodes))


def _folder(cluster: str) -> Path:
    return Home.of(os.environ).root / "shelf" / cluster
