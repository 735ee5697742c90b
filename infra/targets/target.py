"""The target protocol: what every place that machines come from can do, and the capabilities that only some have.

Adding a target is one folder with a class that implements `Target` and one line in registry.py; docs/add-a-target.md
is the checklist. Modules that implement this protocol stay light: they load the libraries of a cloud, of Docker or of
Pulumi inside the methods that need them, because every command imports every target's class.
"""

# ruff: noqa: ARG002  # Default methods ignore arguments that only some targets need.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Fabric, Issue
from cluster.spec.base import SpecModel
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.resources import access
from infra.targets.cost import Cost, Quote

if TYPE_CHECKING:
    import pulumi

    from bootstrap.transport.base import Transport
    from bootstrap.upgrade.steps import Packaging, PublishedPackages
    from cluster.inventory import Node
    from infra.engine.state_store import StateStore
    from infra.engine.stop import Stop
    from infra.receipt import CacheEntry
    from infra.resources.job_queue import JobQueue
    from infra.resources.secrets import ClusterSecrets
    from infra.targets.facts import Facts


class Console(Protocol):
    """Where a target reports what it is doing."""

    def say(self, text: str) -> None:
        """Print one quiet line of progress."""
        ...

    def status(self, text: str) -> AbstractContextManager[Any]:
        """Show a spinner while the block runs; the value it yields has `update(text)`."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a spec can use on a target; if it uses more, the error names the targets that have it."""

    machine: frozenset[str] = frozenset()
    """Fields that describe a machine: `size`, `instance_type`; none if machines exist already."""
    fabrics: frozenset[Fabric] = frozenset({"tcp"})
    gpus: frozenset[str] = frozenset()
    """Kinds of GPU: `real`, `simulated`."""
    storage: frozenset[str] = frozenset()
    """Kinds of shared filesystem."""
    fields: frozenset[str] = frozenset()
    """Optional fields that not every target can use, for example `network.vpc_id` or `groups.capacity`."""

    @property
    def rents_machines(self) -> bool:
        """Whether machines are instance types of the catalog, with prices and known hardware."""
        return "instance_type" in self.machine


@dataclass(frozen=True)
class Context:
    """What a target needs in addition to the plan. Everything it builds must depend on `guard`."""

    stack: str
    guard: pulumi.Resource
    spec: ClusterSpec
    secrets: ClusterSecrets
    webhook: pulumi.Output[str] | None = None
    """Address that gets alerts, as a secret; the spec has only a digest of it."""

    @property
    def ssh_public_key(self) -> pulumi.Output[str]:
        return self.secrets.ssh_public_key

    @property
    def tags(self) -> Mapping[str, str]:
        return self.spec.tags


@dataclass(frozen=True)
class Built:
    """The machines of a cluster as Pulumi outputs, and how to start Slurm on them."""

    inventory: pulumi.Output[str]
    """An Inventory as JSON, available once the permanent machines have their addresses."""
    addresses: pulumi.Output[dict[str, str]]
    """Addresses by node name."""
    start: Callable[[], pulumi.Output[dict[str, Any]]]
    """Starts Slurm on the machines; its output is available once a job has run across all of them."""


@dataclass(frozen=True)
class Deployment:
    """A cluster that exists or existed: its name, its stack and where it is."""

    cluster: str
    stack: str
    region: str = ""
    """Empty if the target has no regions."""
    account: str = ""
    """The account in which it was created, according to the stack's state; empty if the state does not name one."""


@dataclass(frozen=True)
class Leftover:
    """An existing resource with the cluster's label, or with its name if it cannot have labels."""

    kind: str
    name: str
    created: str = ""
    stack: str = ""
    home: str = ""
    """Label of the MUSTER_HOME that created it; empty if it has none."""
    region: str = ""
    usd_per_hour: float = 0.0
    """Its cost while it exists."""
    keep_reason: str = ""
    """Why it must not be removed; empty if it should be removed."""
    is_node: bool = False
    """Whether it is the machine of a node."""
    used_by: frozenset[str] = frozenset()
    """Kinds of resources that must be gone before it can be removed."""


@dataclass(frozen=True)
class Leftovers:
    """The result of a search for leftovers."""

    resources: list[Leftover]
    unseen: tuple[str, ...] = ()
    """What could not be searched, each with the reason."""
    unseen_kinds: frozenset[str] = frozenset()
    """Kinds of resources that could not be listed."""


class Target(ABC):
    """A place that machines come from."""

    name: ClassVar[str]
    """The value of `target` in a spec."""
    capabilities: ClassVar[Capabilities]
    section: ClassVar[type[SpecModel] | None] = None
    """Model of the target's own section of the spec, whose key is the target's name."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Stacks of the repository for this target; `muster golden` keeps a copy of their plans."""
    setup_phases: ClassVar[tuple[str, ...]] = ()
    """Phases of `python -m setup` that this target needs; empty means all."""
    connect_timeout_s: ClassVar[int] = 5
    """Timeout for opening an SSH connection to a node."""
    reserved_tags: ClassVar[tuple[str, ...]] = ()
    """Prefixes of tag keys that belong to the platform; no spec may use them, so that it can move between targets."""
    backup_help: ClassVar[str] = ""
    """How to back up a cluster of a target that has no archives."""
    stable_nodes: ClassVar[frozenset[str]] = frozenset()
    """Nodes that keep their address and data when a field with policy `replace` changes."""

    def look_up(self, spec: ClusterSpec) -> Iterable[Issue]:
        """Fetch and store what the rules need to know about a spec; return warnings about what could not be fetched."""
        return ()

    @abstractmethod
    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:
        """Yield the issues of a spec on this target; `root` adds the rules on files of the repository."""

    @abstractmethod
    def plan(self, spec: ClusterSpec) -> BuildPlan:
        """Return every node and volume of a valid spec."""

    @abstractmethod
    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        """Return the spec with default machine sizes or types filled in."""

    @abstractmethod
    def cost(self, spec: ClusterSpec) -> Cost:
        """Return the cost of a valid spec by the prices that come with muster."""

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        """Return the cost of a spec by the best prices available, and their source."""
        return Quote(self.cost(spec))

    def region(self, spec: ClusterSpec) -> str:  # most targets have none
        """Return the region that a spec names; empty if the target has none."""
        return ""

    @abstractmethod
    def build(self, plan: BuildPlan, context: Context) -> Built:
        """Declare the Pulumi resources of a cluster."""

    def document_blocks(self) -> Mapping[str, Mapping[str, str]]:
        """Return the generated blocks of documentation pages, by path of the page and name of the block."""
        return {}

    def golden_files(self) -> Mapping[str, str]:
        """Return files that show what the target derives from its catalog: content by path in tests/golden."""
        return {}

    def prepare(self, home: Home, console: Console) -> None:  # noqa: B027  # most targets need nothing
        """Fetch what `up` needs on this machine and set-up does not install."""

    def explain_failure(self, message: str, again: str) -> str:  # for targets that know their errors
        """Return the fix for an error of the target's API, or an empty string; `again` is the command to retry."""
        return ""

    def change_issues(self, old: ClusterSpec, new: ClusterSpec) -> Iterable[Issue]:
        """Yield an issue for each change that the policies of the fields allow but this target cannot make."""
        return ()

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:
        """Return the nodes that a field of the target's own section affects; None for any other field."""
        return None

    def deployment(self, stack: StackHome, cluster: str, spec: ClusterSpec | None) -> Deployment:
        """Return where a stack's cluster is; raise Stop if that is unknown."""
        return Deployment(cluster, stack.name)

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:
        """Return the cluster in the stack's Pulumi state; None unless the state shows that it is on this target."""
        return None

    def labelled_clusters(self, stack: str) -> Sequence[str]:
        """Return the clusters whose resources have the stack's label, if the target can search by that label alone."""
        return ()

    def check_access(self, deployment: Deployment) -> None:  # noqa: B027  # most targets have no accounts
        """Raise ResourceError if the caller's credentials are for another account than the cluster's."""

    @abstractmethod
    def queue(self, deployment: Deployment) -> JobQueue:
        """Return the cluster's job queue, or one that reports that it cannot be queried."""

    @abstractmethod
    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:
        """Return the state of machines, nodes and queue, for `status`."""

    def access_files(self, folder: Path, properties: Mapping[str, Any]) -> access.Files:
        """Return the files for access to a cluster, from the properties of the resource that wrote them."""
        inventory = Inventory.model_validate_json(properties["inventory"])
        spec = ClusterSpec.model_validate_json(properties["spec"])
        return access.files(folder, inventory, spec, properties["ssh_private_key"])

    def check_shell_tools(self) -> None:  # noqa: B027  # ssh itself is enough for most
        """Raise Stop if a program that SSH to this target needs is missing."""

    def ssh_options(self, deployment: Deployment, node: str) -> list[str]:
        """Return the options of ssh for a node that is launched on demand, which has no entry in ssh_config."""
        raise NotImplementedError(
            f"target {self.name} does not launch nodes, so it has no SSH options for {node} of {deployment.cluster}"
        )

    @abstractmethod
    def leftovers(self, deployment: Deployment) -> Leftovers:
        """Return the existing resources of the cluster, except those of another MUSTER_HOME, in order of removal."""

    @abstractmethod
    def remove(self, leftover: Leftover, until: float) -> None:
        """Remove a leftover; if it is in use, retry until `until` (time.monotonic), then raise InUseError."""

    def price_notes(self, remaining: Iterable[Leftover]) -> Sequence[str]:
        """Return remarks on the prices of resources that remain after teardown, for the receipt."""
        return ()


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
    """A target that can check in an account whether a spec can be built there."""

    not_checked: ClassVar[str]
    """A sentence that names what is not checked without credentials."""

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
