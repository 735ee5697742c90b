"""The machines of a node group as one Pulumi resource: creates its static nodes, and removes all of its nodes.

The state holds node names, not instance ids, because Slurm's side replaces broken machines.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, State, emit
from cluster import names
from cluster.plural import format_count
from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed
from infra.targets.aws.images.builder_machine import end_earlier
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.error_codes import FIXES
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.host_keys import hand_over
from infra.targets.aws.launcher.instances import CLOSED_TAG, ENDING, HELD_TAG, list_instances, terminate
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.power.launcher import TRANSIENT, Machine, MachineList, Shortage
from slurm.power.reasons import group_by_type

_RETRY_INTERVAL_S = 30.0
_FIRST_POLL_S, _POLL_S = 0.5, 5.0
# Machines with eight GPUs take minutes to terminate.
_TERMINATION_TIMEOUT_S = 1200.0


class NodesProvider(ResourceProvider):
    """Pulumi provider of a group; its inputs are NodesArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        fleet = _fleet(props)
        return CreateResult(f"nodes-{fleet.cluster}-{props['group']}", props | _group(props).ensure())

    def read(self, id_: str, props: Properties) -> ReadResult:
        return ReadResult(id_, props | _group(props).inspect())

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("group", "machine"))
        other = changed(olds, news, ("static", "count", "fleet")) or olds.get("missing") or olds.get("held")
        return DiffResult(changes=bool(replaces or other), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _group(news).ensure())

    def delete(self, _id: str, props: Properties) -> None:
        _group(props).remove()


@dataclass(frozen=True)
class NodesArgs:
    """The size of a group and what its machines are launched from."""

    group: str
    static: int
    """Number of nodes that always exist: the first ones."""
    count: int
    """Maximum number of nodes; those with a higher number are removed."""
    machine: pulumi.Input[str]
    """What cannot be changed on a running machine (type, image, fabric); a new value replaces all of them."""
    fleet: pulumi.Input[str]
    """The Fleet, as JSON."""


class Nodes(Resource, module="muster:aws", name="Nodes"):
    """The machines of a node group."""

    names: pulumi.Output[list[str]]
    """Names of the nodes that always exist."""

    def __init__(self, args: NodesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        outputs = {"names": None, "missing": None, "held": None}
        super().__init__(NodesProvider(), f"nodes-{args.group}", {**vars(args), **outputs}, opts)


@dataclass
class Group:
    """The machines of a group in AWS; tests pass another clock."""

    api: AwsApi
    fleet: Fleet
    name: str
    static: int
    count: int
    sleep: Callable[[float], None] = field(default=time.sleep)
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def static_names(self) -> list[str]:
        return list(names.members(self.name, self.static))

    def inspect(self) -> Properties:
        """Return what `up` has to repair: the missing nodes, and whether an upgrade still holds launches."""
        instances = list_instances(self.api, self.fleet)
        return {"missing": self._missing(instances), "held": self.name in instances.held}

    def ensure(self) -> Properties:
        """Launch missing nodes, all or none, and remove those beyond the group's size."""
        instances = list_instances(self.api, self.fleet)
        surplus = [m for m in self._members(instances) if m.name and names.number_of(m.name) > self.count]
        if surplus:
            _emit((machine.name for machine in surplus), "remove", "changed")
            terminate(self.api, surplus)
        # A version of muster whose nodes shared a key may have launched them.
        current = {machine.name: machine for machine in self._members(instances) if machine not in surplus}
        hand_over(self.api, self.fleet, {name: machine for name, machine in current.items() if name})
        launched = self._launch(self._missing(instances))
        existing = {name: machine for name, machine in instances.by_name().items() if name in self.static_names}
        if static := existing | launched:
            AwsLauncher(self.fleet, self.api).publish_names({name: m.address for name, m in static.items()})
        self._reopen(instances)
        return {"names": self.static_names, "missing": [], "held": False}

    def remove(self) -> None:
        """Terminate every machine of the group, also those that Slurm started, and wait until they are gone.

        The group is closed first, or the controller would launch new ones. A network interface that still exists
        would block the deletion of the subnet, hence the wait. A machine of an image build that was killed would too.
        """
        end_earlier(self.api, self.fleet.cluster)
        self._close(list_instances(self.api, self.fleet))
        deadline, terminated, pause = self.clock() + _TERMINATION_TIMEOUT_S, set[str](), _FIRST_POLL_S
        while machines := self._members(list_instances(self.api, self.fleet, ENDING)):
            remaining = [machine for machine in machines if machine.id not in terminated]
            if remaining:
                _emit((machine.name for machine in remaining), "remove", "start")
                terminated |= set(terminate(self.api, remaining))
            if self.clock() > deadline:
                ids = ", ".join(machine.id for machine in machines)
                what = f"{ids} did not terminate within {_TERMINATION_TIMEOUT_S:g} s"
                raise ResourceError(f"groups.{self.name}", what, "run the command again in a few minutes")
            self.sleep(pause)
            pause = min(2 * pause, _POLL_S)
        _emit(self.static_names, "remove", "changed")

    def _missing(self, instances: MachineList) -> list[str]:
        running = {name for name, machine in instances.by_name().items() if machine.running}
        return [name for name in self.static_names if name not in running]

    def _members(self, instances: MachineList) -> list[Machine]:
        return [machine for machine in instances.machines if machine.group == self.name]

    def _launch(self, missing: Sequence[str]) -> dict[str, Machine]:
        if missing:
            _emit(missing, "launch", "start")
        entry = self.fleet.group(self.name)
        deadline = self.clock() + entry.retry_s
        while missing:
            result = launch(self.api, self.fleet, entry.options, [tuple(missing)], uuid.uuid4().hex)
            if not result.missing:
                _emit(missing, "launch", "changed", next(iter(result.machines.values())).zone)
                return result.machines
            reasons = _join(result.shortages)
            permanent = all(shortage.fault.kind not in TRANSIENT for shortage in result.shortages)
            if permanent or self.clock() + _RETRY_INTERVAL_S > deadline:
                _emit(missing, "launch", "failed", reasons)
                raise _capacity_problem(self.name, len(missing), result.shortages, entry.retry_s)
            _emit(missing, "launch", "start", f"{reasons}; retrying")
            self.sleep(_RETRY_INTERVAL_S)
            # Meanwhile the controller may have launched some of them: those that have been up before or that jobs need.
            missing = self._missing(list_instances(self.api, self.fleet))
        return {}

    def _close(self, instances: MachineList) -> None:
        """Stop the controller from launching nodes of this group."""
        if instances.controller and self.name not in instances.closed:
            self._tag(instances.controller, CLOSED_TAG, instances.closed | {self.name})

    def _reopen(self, instances: MachineList) -> None:
        """Let the controller launch nodes of this group again, after `up` has: alone, it launches them one by one."""
        if self.name not in instances.closed | instances.held:
            return
        # The launch may have taken minutes, in which other groups were closed or reopened.
        current = list_instances(self.api, self.fleet)
        for tag, groups in ((CLOSED_TAG, current.closed), (HELD_TAG, current.held)):
            if current.controller and self.name in groups:
                self._tag(current.controller, tag, groups - {self.name})

    def _tag(self, controller: str, tag: str, groups: Collection[str]) -> None:
        tags = [{"Key": tag, "Value": " ".join(sorted(groups))}]
        self.api.call("ec2", "create_tags", Resources=[controller], Tags=tags)


def _emit(nodes: Iterable[str], step: str, state: State, detail: str = "") -> None:
    for node in nodes:
        emit(Event("machines", node, step, state, detail))


def _join(shortages: Sequence[Shortage]) -> str:
    availability = [(shortage.option.instance_type, str(shortage)) for shortage in shortages]
    several = len({instance_type for instance_type, _ in availability}) > 1
    return group_by_type(availability) if several else ", ".join(text for _, text in availability)


def _capacity_problem(group: str, count: int, shortages: Sequence[Shortage], retry_s: int) -> ResourceError:
    kinds = dict.fromkeys(shortage.fault.kind for shortage in shortages)
    waited = f" within {retry_s} s" if "shortage" in kinds else ""
    messages = dict.fromkeys(str(s.fault) for s in shortages if s.fault.kind not in TRANSIENT)
    fixes = [FIXES[kind] for kind in kinds if kind not in TRANSIENT] or [
        "add zones, a fallback or fallback_types under capacity, reserve capacity, or ask for fewer nodes"
    ]
    what = f"{format_count(count, 'machine')} could not be launched{waited}: {_join(shortages)}"
    return ResourceError(f"groups.{group}.capacity", "; ".join([what, *messages]), "; ".join(fixes))


def _group(props: Properties) -> Group:
    fleet = _fleet(props)
    # The Pulumi engine returns numbers as floats.
    return Group(AwsApi(fleet.region), fleet, props["group"], int(props["static"]), int(props["count"]))


def _fleet(props: Properties) -> Fleet:
    return Fleet.model_validate_json(props["fleet"])
