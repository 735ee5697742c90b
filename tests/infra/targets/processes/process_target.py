"""A target whose machines are plain processes: the smallest thing that goes through the whole protocol.

It lives outside the package, as somebody else's would: an entry point in the group `muster.targets` makes it known.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider

from cluster import names
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import error
from cluster.spec.model import SpecModel, field
from infra.home import Home, StackHome
from infra.plan import BuildPlan, PlannedNode, assemble, node_count
from infra.resources import access
from infra.resources.job_queue import JobQueue, NoQueue
from infra.targets.cost import Cost, Line
from infra.targets.facts import DAEMONS, Facts, Machine, Slurm, SlurmNode
from infra.targets.target import Built, Capabilities, Context, Deployment, Leftover, Leftovers, Target

Properties = dict[str, Any]
# A child that kept the plugin's streams open would keep Pulumi waiting for it.
_SILENT: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Processes(SpecModel):
    """How the processes run."""

    priority: int = field("niceness of the processes", "safe", default=0, ge=0, le=19, examples=[10])


class ProcessTarget(Target):
    """A node is a process that sleeps."""

    name = "processes"
    capabilities = Capabilities(storage=frozenset({"existing"}))
    section = Processes

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002
        for name, group in spec.groups.items():
            if node_count(group) > 8:
                message = f"{node_count(group)} is more than one machine should carry; allowed: 0 to 8"
                yield error("too_many_processes", f"groups.{name}.count", message, "write `count: 8` or less")

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return assemble(spec, tuple(_nodes(spec)))

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def cost(self, spec: ClusterSpec) -> Cost:
        nodes = len(self.plan(spec).nodes)
        return Cost((Line("groups", "processes", nodes, 0.5 * nodes),))

    def build(self, plan: BuildPlan, context: Context) -> Built:
        options = pulumi.ResourceOptions(depends_on=[context.guard])
        processes = {node.name: Process(plan.cluster, node.name, context.stack, options) for node in plan.nodes}
        pids = pulumi.Output.all(**{name: process.pid for name, process in processes.items()})
        inventory = pids.apply(lambda ids: _inventory(plan, ids).model_dump_json())
        addresses = pids.apply(lambda ids: dict.fromkeys(ids, "127.0.0.1"))
        files = AccessFiles(context, inventory, pulumi.ResourceOptions(depends_on=list(processes.values())))
        return Built(inventory, addresses, lambda: files.ready)

    def queue(self, deployment: Deployment) -> JobQueue:  # noqa: ARG002  # processes run no jobs
        return NoQueue()

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:  # noqa: ARG002
        machines = {
            node.name: Machine("running" if _runs(int(node.machine_id)) else "gone") for node in inventory.nodes
        }
        nodes = {node.name: SlurmNode("idle") for node in inventory.compute}
        return Facts(inventory, inventory.nodes, machines, Slurm(nodes, daemons=dict.fromkeys(DAEMONS, "active")))

    def leftovers(self, deployment: Deployment) -> Leftovers:
        folder = _folder(deployment.cluster)
        return Leftovers([Leftover("process", str(file)) for file in sorted(folder.glob("*.pid"))])

    def remove(self, leftover: Leftover, until: float) -> None:  # noqa: ARG002  # a killed process is gone at once
        _stop(Path(leftover.name))


class ProcessProvider(ResourceProvider):
    """Starts and stops one process; its id is in a file under MUSTER_HOME."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True, **_SILENT)
        file = _folder(props["cluster"]) / f"{props['node']}.pid"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(process.pid))
        return CreateResult(str(file), {**props, "pid": str(process.pid)})

    def read(self, id_: str, props: Properties) -> ReadResult:
        alive = Path(id_).exists() and _runs(int(props["pid"]))
        return ReadResult(id_, props) if alive else ReadResult("", {})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaced = [key for key in ("cluster", "node", "stack") if olds.get(key) != news.get(key)]
        return DiffResult(changes=bool(replaced), replaces=replaced)

    def delete(self, id_: str, _props: Properties) -> None:
        _stop(Path(id_))


class Process(Resource, module="processes", name="Process"):
    """One machine of the cluster."""

    pid: pulumi.Output[str]

    def __init__(self, cluster: str, node: str, stack: str, options: pulumi.ResourceOptions) -> None:
        properties = {"cluster": cluster, "node": node, "stack": stack, "pid": None}
        super().__init__(ProcessProvider(), f"process-{node}", properties, options)


class AccessFilesProvider(ResourceProvider):
    """Writes the files by which commands know the running cluster."""

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


class AccessFiles(Resource, module="processes", name="AccessFiles"):
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


def _inventory(plan: BuildPlan, pids: dict[str, str]) -> Inventory:
    shared = {"address": "127.0.0.1", "host_key": "none"}
    nodes = [
        Node(
            **node.model_dump(include={"name", "role", "group", "cpus", "memory_mb"}),
            machine_id=pids[node.name],
            **shared,
        )
        for node in plan.nodes
    ]
    return Inventory(cluster=plan.cluster, target=plan.target, nodes=tuple(nodes))


def _folder(cluster: str) -> Path:
    return Home.of(os.environ).root / "processes" / cluster


def _runs(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and " Z " not in state.read_text()


def _stop(file: Path) -> None:
    if not file.exists():
        return
    pid = int(json.loads(file.read_text()))
    if _runs(pid):
        os.kill(pid, signal.SIGKILL)
    file.unlink()
