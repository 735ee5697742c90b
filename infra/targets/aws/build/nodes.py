"""The machines of a group as one Pulumi resource: those always there exist by name, and all of them go with the group.

Pulumi knows names, not machines: which machine is behind one may change, for Slurm's side replaces broken ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, State, emit
from cluster import names
from infra.resources.problem import Problem
from infra.resources.properties import Properties, changed
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.errors import FIXES
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.instances import CLOSED_TAG, ENDING, list_instances, terminate
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.power.launcher import TRANSIENT, Machine, MachineList, Shortage

_AGAIN_S = 30.0
_FIRST_POLL_S, _POLL_S = 0.5, 5.0
# Machines with eight GPUs take minutes to end.
_GONE_S = 1200.0


class NodesProvider(ResourceProvider):
    """Inputs: NodesArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        fleet = _fleet(props)
        return CreateResult(f"nodes-{fleet.cluster}-{props['group']}", props | _group(props).ensure())

    def read(self, id_: str, props: Properties) -> ReadResult:
        return ReadResult(id_, props | {"missing": _group(props).missing()})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("group", "machine"))
        other = changed(olds, news, ("static", "count", "fleet")) or olds.get("missing")
        return DiffResult(changes=bool(replaces or other), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _group(news).ensure())

    def delete(self, _id: str, props: Properties) -> None:
        _group(props).remove()


@dataclass(frozen=True)
class NodesArgs:
    group: str
    static: int
    """The first so many are always there."""
    count: int
    """The most there may be; machines with a higher number go."""
    machine: pulumi.Input[str]
    """What cannot be changed on a running machine (type, image); another value replaces them all."""
    fleet: pulumi.Input[str]
    """The Fleet, as JSON."""


class Nodes(Resource, module="muster:aws", name="Nodes"):
    names: pulumi.Output[list[str]]
    """Of the nodes that are always there."""

    def __init__(self, args: NodesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        outputs = {"names": None, "missing": None}
        super().__init__(NodesProvider(), f"nodes-{args.group}", {**vars(args), **outputs}, opts)


@dataclass
class Group:
    """One group's machines; tests give it another clock."""

    api: AwsApi
    fleet: Fleet
    name: str
    static: int
    count: int
    sleep: Callable[[float], None] = field(default=time.sleep)
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def wanted(self) -> list[str]:
        return [names.member(self.name, number) for number in range(1, self.static + 1)]

    def missing(self) -> list[str]:
        return self._missing(list_instances(self.api, self.fleet))

    def ensure(self) -> Properties:
        """Missing ones are launched, all or none; those beyond the group's size go."""
        found = list_instances(self.api, self.fleet)
        self._reopen(found)
        beyond = [m for m in self._members(found) if m.name and names.number_of(m.name) > self.count]
        if beyond:
            _say((m.name for m in beyond), "remove", "changed")
            terminate(self.api, beyond)
        new = self._launch(self._missing(found))
        there = {name: machine for name, machine in found.by_name().items() if name in self.wanted} | new
        if there:
            AwsLauncher(self.fleet, self.api).publish_names({name: machine.address for name, machine in there.items()})
        return {"names": self.wanted, "missing": []}

    def remove(self) -> None:
        """Ends every machine of the group, also those that Slurm started, and waits until they are gone: a network
        interface that is still there would hold back the subnet. The controller is told first, or it would start new
        ones."""
        found = list_instances(self.api, self.fleet)
        self._close(found)
        deadline, told, pause = self.clock() + _GONE_S, set[str](), _FIRST_POLL_S
        while machines := self._members(list_instances(self.api, self.fleet, ENDING)):
            fresh = [machine for machine in machines if machine.id not in told]
            if fresh:
                _say((machine.name for machine in fresh), "remove", "start")
                told |= set(terminate(self.api, fresh))
            if self.clock() > deadline:
                ids = ", ".join(machine.id for machine in machines)
                raise Problem(f"groups.{self.name}", f"{ids} did not end in {_GONE_S:g} s", "run it again in a while")
            self.sleep(pause)
            pause = min(2 * pause, _POLL_S)
        _say(self.wanted, "remove", "changed")

    def _missing(self, found: MachineList) -> list[str]:
        there = {name for name, machine in found.by_name().items() if machine.running}
        return [name for name in self.wanted if name not in there]

    def _members(self, found: MachineList) -> list[Machine]:
        return [machine for machine in found.machines if machine.group == self.name]

    def _launch(self, missing: Sequence[str]) -> dict[str, Machine]:
        if not missing:
            return {}
        _say(missing, "launch", "start")
        entry = self.fleet.group(self.name)
        deadline = self.clock() + entry.retry_s
        while True:
            result = launch(self.api, self.fleet, entry.options, [tuple(missing)], uuid.uuid4().hex)
            if not result.missing:
                _say(missing, "launch", "changed", next(iter(result.machines.values())).zone)
                return result.machines
            said = _told(result.shortages)
            hopeless = all(one.fault.kind not in TRANSIENT for one in result.shortages)
            if hopeless or self.clock() + _AGAIN_S > deadline:
                _say(missing, "launch", "failed", said)
                raise _none_to_be_had(self.name, len(missing), result.shortages, entry.retry_s)
            _say(missing, "launch", "start", f"{said}; trying again")
            self.sleep(_AGAIN_S)

    def _close(self, found: MachineList) -> None:
        if found.controller and self.name not in found.closed:
            self._mark(found, found.closed | {self.name})

    def _reopen(self, found: MachineList) -> None:
        if found.controller and self.name in found.closed:
            self._mark(found, found.closed - {self.name})

    def _mark(self, found: MachineList, closed: Collection[str]) -> None:
        tag = {"Key": CLOSED_TAG, "Value": " ".join(sorted(closed))}
        self.api.call("ec2", "create_tags", Resources=[found.controller], Tags=[tag])


def _say(nodes: Iterable[str], step: str, state: State, detail: str = "") -> None:
    for node in nodes:
        emit(Event("machines", node, step, state, detail))


def _told(failed: Sequence[Shortage]) -> str:
    return ", ".join(map(str, failed))


def _none_to_be_had(group: str, count: int, failed: Sequence[Shortage], retry_s: int) -> Problem:
    kinds = dict.fromkeys(one.fault.kind for one in failed)
    waited = f" within {retry_s} s" if "shortage" in kinds else ""
    messages = dict.fromkeys(str(one.fault) for one in failed if one.fault.kind not in TRANSIENT)
    fixes = [FIXES[kind] for kind in kinds if kind not in TRANSIENT] or [
        "name more zones or a fallback under capacity, reserve capacity, or ask for fewer nodes"
    ]
    what = f"{count} machines could not be had{waited}: {_told(failed)}"
    return Problem(f"groups.{group}.capacity", "; ".join([what, *messages]), "; ".join(fixes))


def _group(props: Properties) -> Group:
    fleet = _fleet(props)
    # Numbers come back from the engine as floats.
    return Group(AwsApi(fleet.region), fleet, props["group"], int(props["static"]), int(props["count"]))


def _fleet(props: Properties) -> Fleet:
    return Fleet.model_validate_json(props["fleet"])
