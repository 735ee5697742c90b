"""What only some targets can do: mixin classes beside `Target`, which commands detect with `isinstance`."""

# ruff: noqa: ARG002  # Default methods ignore arguments that only some targets need.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from infra.home import Home, StackHome
from infra.targets.cost import Quote
from infra.targets.error_coverage import ErrorCoverage, ErrorOptions
from infra.targets.target import Console, Deployment, Leftover

if TYPE_CHECKING:
    from bootstrap.transport.base import Transport
    from bootstrap.upgrade.steps import Packaging, PublishedPackages
    from cluster.inventory import Node
    from infra.engine.state_store import StateStore
    from infra.engine.stop import Stop
    from infra.receipt import CacheEntry


class Launches:
    """A target whose nodes Slurm starts and stops: groups may have `min` and `max`.

    A node that is drained because of a hardware failure gets another machine within minutes.
    """


class Archives:
    """A target whose whole cluster `muster backup` can copy to an archive: root of its controller is reached by ssh.

    It also pushes its configuration, so that a restored cluster gets what its stack file adds.
    """


class Pushes:
    """A target whose nodes are configured over SSH from here, so `muster bootstrap` can repeat it."""


class RotatesKeys:
    """A target whose `up` gives a changed Slurm key to every node, so that `muster rotate keys` can replace it."""

    def wait_for_launched_nodes(
        self, spec: ClusterSpec, stack: StackHome, console: Console, *, starting: bool = True
    ) -> None:
        """Wait until nodes that Pulumi does not know, because Slurm launched them, have what the last `up` changed.

        Without `starting`, nodes that have not been ready yet are not waited for.
        """


@dataclass(frozen=True)
class UpgradeNodes:
    """The running nodes of a cluster that is upgraded, how to reach them, and how they install Slurm."""

    inventory: Inventory
    """Every node that runs, also those that were launched on demand."""
    connect: Callable[[Node], Transport]
    packaging: Packaging
    backups: str
    """Folder on the controller, on a disk that outlives its machine where there is one."""
    is_gone: Callable[[Node], bool] = lambda _node: False
    """Returns whether a node's machine was removed since, because the node was idle."""


class Upgrades(ABC):
    """A target that can install another release of Slurm on running nodes."""

    @abstractmethod
    def check_release(self, spec: ClusterSpec, stack: StackHome, release: str) -> None:
        """Raise ResourceError if nodes could not have this release: no packages, or an image with another one."""

    @abstractmethod
    def reach_nodes(self, spec: ClusterSpec, stack: StackHome, inventory: Inventory) -> UpgradeNodes:
        """Return the nodes of a cluster that run now; raise ResourceError if there is no controller."""

    @abstractmethod
    def publish_packages(
        self, spec: ClusterSpec, stack: StackHome, nodes: UpgradeNodes, release: str
    ) -> PublishedPackages:
        """Give all nodes the packages of a release; return where they are, with their SHA-256."""

    def hold_launches(
        self, spec: ClusterSpec, stack: StackHome, *, keep_after_error: bool = False
    ) -> AbstractContextManager[None]:
        """Launch no node in the block, and afterwards not before `up`: it would get the release of the last `up`.

        An error in the block ends this, unless it is to be kept.
        """
        return nullcontext()

    def check_twin(self, release: str) -> None:  # noqa: B027  # most need what they need for the packages
        """Raise ResourceError if a twin with this release cannot be started."""

    @abstractmethod
    def open_twin(
        self, spec: ClusterSpec, stack: str, controller: Node, release: str
    ) -> AbstractContextManager[Transport]:
        """Start a machine with this release and the controller's name that reaches no node; remove it at the end."""


@dataclass(frozen=True)
class Flight:
    """The result of a pre-flight."""

    issues: list[Issue]
    """Issues of the validators and of the account."""
    quote: Quote | None = None
    """The cost that the budget was checked against; None without a budget."""

    @property
    def by_todays_prices(self) -> bool:
        return self.quote is not None and self.quote.today


class Preflight(ABC):
    """A target that can check in an account, or on machines that exist, whether a spec can be built there."""

    not_checked: ClassVar[str]
    """A sentence that names what is not checked without credentials."""
    refusal: ClassVar[str] = "this account cannot create it"
    """Why a valid spec cannot be built, in words that follow `is valid, but`."""

    @abstractmethod
    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:
        """Return `issues` and those of the account; None without credentials."""

    @abstractmethod
    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        """Run the pre-flight of `up` (without `full`, only identify the caller); raise Stop without an answer."""


@dataclass(frozen=True)
class RehearsalOptions:
    """How a rehearsal runs."""

    seed: int
    """Decides how long the cloud takes; the same seed repeats its delays."""
    speed: float
    """How much faster than in the cloud the time passes."""
    nodes: int = 2
    """Most nodes of a group that run."""
    scenario: str = ""
    """What goes wrong, one of the target's scenarios; by default the first, in which nothing does."""


class Rehearses(ABC):
    """A target whose whole path can be rehearsed on this machine, without an account."""

    @abstractmethod
    def scenarios(self) -> Mapping[str, str]:
        """Return what can go wrong in a rehearsal and what must hold then, by name; nothing does in the first."""

    @abstractmethod
    def look_up_offline(self, spec: ClusterSpec) -> None:
        """Load what the rules need to know about a spec, from what the simulated cloud knows."""

    @abstractmethod
    def rehearse(self, stack: StackHome, options: RehearsalOptions, console: Console) -> Path:
        """Create, use and remove the cluster of a stack in a simulated cloud; return the folder with the timeline."""

    @abstractmethod
    def rehearse_errors(self, stack: StackHome, options: ErrorOptions, console: Console) -> ErrorCoverage:
        """Let the calls of all commands meet errors of the cloud, and count the pairs of both that were covered."""


class Budgeted(ABC):
    """A target whose clusters cost money, so a spec can have a budget."""

    price_issues: ClassVar[frozenset[str]]
    """Codes of issues that depend on prices; a check against today's prices, if available, replaces them."""

    @abstractmethod
    def budget_note(self, spec: ClusterSpec) -> str:
        """Return a sentence on what the monthly budget does; empty if the spec has none."""


@dataclass(frozen=True)
class NodeLog:
    """The stored logs of a machine that is or was a node."""

    machine: str
    """Id of the machine."""
    stored: datetime
    read: Callable[[], str]


class KeepsLogs(ABC):
    """A target whose machines store their logs, so that they can be read when the machine is gone."""

    @abstractmethod
    def node_logs(self, deployment: Deployment, node: str) -> Sequence[NodeLog]:
        """Return the logs of the machines that were this node, the latest first."""


@dataclass(frozen=True)
class MachineImage:
    """An image that was built for the nodes of a cluster."""

    id: str
    purpose: str
    """Which nodes start from it, in the target's words."""
    slurm: str
    """Release of Slurm that it has."""
    base: str
    """The image that it was built from."""
    built: str
    """Time, ISO 8601 in UTC."""


class Images(ABC):
    """A target whose nodes can start from images that have everything installed."""

    images_need_cluster: ClassVar[bool] = True
    """Whether images are built on a cluster that is up."""
    image_use: ClassVar[str]
    """What has to be done with the properties that name new images, and what that replaces."""

    @abstractmethod
    def build_images(
        self, spec: ClusterSpec, stack: StackHome, deployment: Deployment, console: Console
    ) -> Mapping[str, MachineImage]:
        """Build and test the images of a cluster; return them by the spec's property that names each."""

    @abstractmethod
    def list_images(self, deployment: Deployment) -> Sequence[MachineImage]:
        """Return the images that were built on a cluster, the latest first."""

    @abstractmethod
    def remove_image(self, deployment: Deployment, image: str) -> None:
        """Remove an image; raise ResourceError if it is not one of the cluster's, or machines start from it."""

    def unnamed_images(self, stack: StackHome, spec: ClusterSpec | None) -> Sequence[str]:
        """Return the images that machines of a stack start from although its spec does not name them."""
        return ()

    def forget_choices(self, stack: StackHome) -> None:  # noqa: B027  # most choose nothing
        """Remove what `up` has chosen for a stack's machines, after teardown."""


class RefreshesImages(Images):
    """A target that can replace the machines of a running cluster with ones from new images."""

    @abstractmethod
    def image_paths(self, spec: ClusterSpec, built: Sequence[MachineImage]) -> Sequence[str]:
        """Return the properties that name the images that `build_images` builds; `built` are those of earlier builds.

        A group with an image that is not among them keeps it, so none is built for that group.
        """

    @abstractmethod
    def groups_of_image(self, path: str, spec: ClusterSpec) -> Sequence[str]:
        """Return the groups whose image a property names, including those that have another one of their own now."""

    @abstractmethod
    def end_machine(self, deployment: Deployment, node: str) -> None:
        """End the machine of a permanent node in order, and wait until it is gone; `up` starts another one."""


class StoresState(ABC):
    """A target whose cloud can store Pulumi's state, so that several operators share it."""

    state_scheme: ClassVar[str]
    """The scheme of its URLs."""
    state_example: ClassVar[str]
    """A URL, for messages."""

    @abstractmethod
    def open_state(self, url: str) -> StateStore:
        """Return the store of a URL; raise Stop if the URL is invalid."""

    @abstractmethod
    def create_state(self, url: str) -> Sequence[str]:
        """Create what the URL names, readable only by its owner, and return its properties."""


class ManagedStorage:
    """A target that creates filesystems that can outlive the cluster (`keep: true`)."""

    storage_removal: ClassVar[str] = ""
    """How to remove a filesystem that teardown kept by hand; empty if `teardown --delete-storage` removes it."""

    def measure(self, leftover: Leftover) -> int | None:
        """Return the size of a filesystem in bytes; None if that is unknown."""
        return None


@dataclass(frozen=True)
class HostFacts:
    """The machine that the nodes run on."""

    cpus: int
    memory_mb: int
    can_limit_memory: bool = True
    """Whether the kernel offers cgroups with a memory controller."""
    images: tuple[str, ...] | None = None
    """The images that `muster image build` has built on this machine; None if they were not listed."""


class OnThisMachine(ABC):
    """A target whose nodes share this machine."""

    @abstractmethod
    def host_facts(self) -> HostFacts:
        """Return the CPUs, memory and images of this machine; raise ResourceError if its engine does not answer."""

    @abstractmethod
    def validate_host(self, spec: ClusterSpec, host: HostFacts) -> Iterable[Issue]:
        """Yield an issue for each requirement of a spec that this machine does not meet."""

    @abstractmethod
    def check_name_free(self, spec: ClusterSpec, stack: str) -> None:
        """Raise ResourceError if a resource of another owner has the cluster's name."""

    @abstractmethod
    def explain_error(self, failure: Exception) -> Stop | None:
        """Return the message for an error of this machine's engine; None for any other error."""

    @abstractmethod
    def caches(self, home: Home) -> tuple[CacheEntry, ...]:
        """Return the caches that outlive clusters: images, training environments, tools."""

    @abstractmethod
    def drop_caches(self, home: Home) -> tuple[CacheEntry, ...]:
        """Remove the caches and return them; raise Stop if a cluster uses them."""
