"""The interface that slurm.power requires of a target: a `Launcher`, with its machines, options and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

FaultKind = Literal["shortage", "throttle", "quota", "permission", "gone", "broken"]

# Transient errors: retrying usually succeeds.
TRANSIENT: tuple[FaultKind, ...] = ("shortage", "throttle")

Unit = tuple[str, ...]
"""Names of nodes that are useful only together: the nodes of one job."""

Place = tuple[str, ...]
"""Network switches above a machine, from the top down."""


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster as the target sees it."""

    id: str
    name: str
    """Name of its node; empty if it has the cluster's tags but no name, so that it cannot be used."""
    group: str
    zone: str
    address: str
    launched: float
    """Launch time in seconds since the epoch."""
    running: bool
    """Whether it runs or is starting."""


@dataclass(frozen=True)
class MachineList:
    """The machines of a cluster that exist."""

    machines: tuple[Machine, ...]
    """Compute nodes, oldest first."""
    controller: str = ""
    """Id of the controller's machine; empty if it does not exist."""
    closed: frozenset[str] = frozenset()
    """Groups that are being removed or replaced: the power programs launch nothing for them."""
    held: frozenset[str] = frozenset()
    """Groups whose launches wait until the release of Slurm that their nodes will get is decided."""

    def by_name(self) -> dict[str, Machine]:
        """Return one machine per name: a running one, and of two that run the older, which Slurm knew first."""
        best_last = sorted(self.machines, key=lambda machine: (machine.running, -machine.launched))
        return {machine.name: machine for machine in best_last if machine.name}


@dataclass(frozen=True)
class Fault:
    """An error of the target's API, classified by what can be done about it."""

    kind: FaultKind
    code: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class LauncherError(Exception):
    """The target rejected a call or did not answer, even after retries."""

    def __init__(self, operation: str, fault: Fault, fix: str) -> None:
        super().__init__(f"{operation}: {fault}; {fix}")
        self.fault = fault


class Option(Protocol):
    """One way to get a machine: a type in one zone, bought in one way."""

    @property
    def zone(self) -> str: ...

    @property
    def purchase(self) -> str:
        """How it is paid for, for example `on-demand` or `spot`."""
        ...

    @property
    def instance_type(self) -> str: ...

    @property
    def key(self) -> str:
        """Identifies the capacity that this option uses; options with the same key share their cooldown."""
        ...


class LaunchGroup(Protocol):
    """The launch options of a node group."""

    @property
    def options(self) -> Sequence[Option]:
        """Options in the order in which they are tried."""
        ...

    @property
    def retry_s(self) -> int:
        """How long a shortage is retried before it is reported to Slurm, in seconds."""
        ...


@dataclass(frozen=True)
class Shortage:
    """An option that did not provide every machine requested of it."""

    option: Option
    fault: Fault
    got: int = 0
    """Machines that it did provide."""

    def __str__(self) -> str:
        nothing = self.fault.kind == "shortage" and "Capacity" in self.fault.code and not self.got
        what = "none" if nothing else self.fault.code
        only = f" ({self.got} only)" if self.got else ""
        return f"{self.option.zone} {self.option.purchase} {what}{only}"


@dataclass
class LaunchResult:
    """The result of a launch."""

    machines: dict[str, Machine] = field(default_factory=dict)
    """By node name."""
    shortages: list[Shortage] = field(default_factory=list)
    missing: list[Unit] = field(default_factory=list)
    """Units that no option could complete; none of their machines is left running."""


@dataclass(frozen=True)
class SetUpFailure:
    """A machine's report that it could not become a node."""

    machine: str
    """Id of the machine that reported."""
    step: str
    line: str


@dataclass(frozen=True)
class Spending:
    """What the cluster has cost this month, in USD."""

    spent: float
    limit: float

    @property
    def over(self) -> bool:
        return self.spent >= self.limit

    def __str__(self) -> str:
        return f"{self.spent:,.0f} of {self.limit:,.0f} USD spent this month"


class Launcher(Protocol):
    """A target's machines. Every method raises LauncherError if the target rejects a call or does not answer."""

    def group(self, name: str) -> LaunchGroup: ...

    def list_machines(self) -> MachineList: ...

    def launch(self, options: Sequence[Option], units: Sequence[Unit], token: str) -> LaunchResult:
        """Launch each unit from a single option, trying the options in order; an option's errors count as shortages.

        Repeating a call with the same token launches nothing twice; each new attempt needs a new token.
        """
        ...

    def terminate(self, machines: Iterable[Machine]) -> list[str]:
        """Terminate the machines and return their ids; machines that no longer exist are ignored."""
        ...

    def publish_names(self, addresses: Mapping[str, str]) -> None:
        """Make node names resolve to these addresses."""
        ...

    def read_places(self, machines: Sequence[str]) -> dict[str, Place]:
        """Return the places of machines by id; those that just started may have none yet."""
        ...

    def read_set_up_failures(self, nodes: Sequence[str]) -> dict[str, SetUpFailure]:
        """Return, by node name, the last report of each of these nodes if it is a failure."""
        ...

    def read_spending(self) -> Spending | None:
        """Return this month's spending; None for a cluster without a budget."""
        ...
