"""The target protocol: what every place that machines come from can do, and the capabilities that only some have.

Adding a target is one folder with a class that implements `Target` and one line in registry.py; docs/add-a-target.md
is the checklist. Modules that implement this protocol stay light: they load the libraries of a cloud, of Docker or of
Pulumi inside the methods that need them, because every command imports every target's class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Fabric, Issue
from cluster.spec.model import SpecModel
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.targets.cost import Cost, Quote

if TYPE_CHECKING:
    import pulumi

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
    """What a spec may ask of a target. A spec that asks for more is refused, naming the targets that have it."""

    machine: frozenset[str] = frozenset()
    """Fields that say what a machine is made of: `size`, `instance_type`; none where machines exist already."""
    fabrics: frozenset[Fabric] = frozenset({"tcp"})
    gpus: frozenset[str] = frozenset()
    """Kinds of GPU: `real`, `simulated`."""
    storage: frozenset[str] = frozenset()
    """Kinds of shared filesystem."""
    fields: frozenset[str] = frozenset()
    """Optional fields that not every target can use, such as `network.vpc_id` or `groups.capacity`."""

    @property
    def rents_machines(self) -> bool:
        """Whether machines are instance types of the catalog, with prices and known hardware."""
        return "instance_type" in self.machine


@dataclass(frozen=True)
class Context:
    """What a target needs besides the plan. Everything it builds depends on `guard`."""

    stack: str
    guard: pulumi.Resource
    spec: ClusterSpec
    secrets: ClusterSecrets

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
    """Makes a Slurm cluster of the machines; its output is available once a job has crossed all of them."""


@dataclass(frozen=True)
class Deployment:
    """A cluster that exists or existed: its name, its stack and where it is."""

    cluster: str
    stack: str
    region: str = ""
    """Empty where the target has no regions."""
    account: str = ""
    """The account in which the stack's state says it was created; empty where no state does."""


@dataclass(frozen=True)
class Leftover:
    """A resource that exists and carries the cluster's label (or its name, where there are no labels)."""

    kind: str
    name: str
    created: str = ""
    stack: str = ""
    home: str = ""
    """Label of the MUSTER_HOME that created it; empty where it carries none."""
    region: str = ""
    usd_per_hour: float = 0.0
    """What it costs as long as it exists."""
    keep_reason: str = ""
    """Why it must not be removed; empty if it should be removed."""


@dataclass(frozen=True)
class Leftovers:
    """The result of a search for leftovers."""

    resources: list[Leftover]
    unseen: tuple[str, ...] = ()
    """What could not be searched, each with the reason."""


class Target(ABC):
    """A place that machines come from."""

    name: ClassVar[str]
    """As a spec writes it."""
    capabilities: ClassVar[Capabilities]
    section: ClassVar[type[SpecModel] | None] = None
    """Model of the target's own section of the spec, which stands under the target's name."""
    setup_phases: ClassVar[tuple[str, ...]] = ()
    """What `python -m setup` has to prepare on this machine; empty means everything."""
    connect_timeout_s: ClassVar[int] = 5
    """How long an SSH connection to a node may take to open."""
    stable_nodes: ClassVar[frozenset[str]] = frozenset()
    """Nodes that keep their address and data when a field with policy `replace` changes."""

    @abstractmethod
    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:
        """Yield what is wrong with a spec for this target; `root` adds rules about files of the repository."""

    @abstractmethod
    def plan(self, spec: ClusterSpec) -> BuildPlan:
        """Return every node and volume that a valid spec asks for."""

    @abstractmethod
    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        """Return the spec with the machine sizes or types that it leaves to defaults written out."""

    @abstractmethod
    def cost(self, spec: ClusterSpec) -> Cost:
        """Return what a valid spec costs, by the prices that come with muster."""

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:  # noqa: ARG002  # a target may have to ask
        """Return what a spec costs by the best prices available, and where they come from."""
        return Quote(self.cost(spec))

    def region(self, spec: ClusterSpec) -> str:  # noqa: ARG002  # most targets have none
        """Return the region that a spec names; empty where the target has none."""
        return ""

    @abstractmethod
    def build(self, plan: BuildPlan, context: Context) -> Built:
        """Declare the Pulumi resources of a cluster."""

    def document_blocks(self) -> Mapping[str, Mapping[str, str]]:
        """Return the generated parts of documentation pages: by path of the page, by name of the block."""
        return {}

    def golden_files(self) -> Mapping[str, str]:
        """Return files that show what the target derives from its catalog: content by path below tests/golden."""
        return {}

    def prepare(self, home: Home, console: Console) -> None:  # noqa: B027  # most targets need nothing
        """Fetch what `up` needs on this machine besides what set-up installs."""

    def explain_failure(self, message: str, again: str) -> str:  # noqa: ARG002  # for targets that know their errors
        """Return the fix for an error message of the target's API, or nothing; `again` is the command to retry."""
        return ""

    def change_issues(self, old: ClusterSpec, new: ClusterSpec) -> Iterable[Issue]:  # noqa: ARG002
        """Yield changes that this target cannot make although the fields' policies allow them."""
        return ()

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:  # noqa: ARG002
        """Return the nodes that a field of the target's own section speaks about; None for any other field."""
        return None

    def deployment(self, stack: StackHome, cluster: str, spec: ClusterSpec | None) -> Deployment:  # noqa: ARG002
        """Return where a stack's cluster is; raise Stop where nothing says it."""
        return Deployment(cluster, stack.name)

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:  # noqa: ARG002
        """Return the cluster that the stack's Pulumi state holds, where the state shows that it is of this target."""
        return None

    def labelled_clusters(self, stack: str) -> Sequence[str]:  # noqa: ARG002
        """Return the clusters whose resources carry the stack's label, where a search needs no other knowledge."""
        return ()

    def check_access(self, deployment: Deployment) -> None:  # noqa: B027  # most targets have no accounts
        """Raise ResourceError where the caller's credentials are not of the account that holds the cluster."""

    @abstractmethod
    def queue(self, deployment: Deployment) -> JobQueue:
        """Return the cluster's job queue, as far as it can be asked."""

    @abstractmethod
    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:
        """Return the state of machines, nodes and queue, for `status`."""

    def check_shell_tools(self) -> None:  # noqa: B027  # ssh itself is enough for most
        """Raise Stop where a program that SSH to this target needs is missing."""

    def ssh_options(self, deployment: Deployment, node: str) -> list[str]:
        """Return options of ssh for a node that is launched by name and so has no entry in ssh_config."""
        raise NotImplementedError(f"target {self.name} launches no nodes; asked for {node} of {deployment.cluster}")

    @abstractmethod
    def leftovers(self, deployment: Deployment) -> Leftovers:
        """Return what exists of the cluster, created by this MUSTER_HOME or by nobody known, in order of removal."""

    @abstractmethod
    def remove(self, leftover: Leftover, until: float) -> None:
        """Remove one leftover; wait `until` then (time.monotonic) for what is still in use."""


class Launches:
    """A target whose nodes Slurm itself starts and stops: groups may have `min` and `max`.

    A node that is drained because its hardware failed is replaced by another machine within minutes.
    """


class Pushes:
    """A target whose nodes are configured over SSH from here, so that `muster bootstrap` can repeat it."""


@dataclass(frozen=True)
class Flight:
    """The result of a pre-flight."""

    issues: list[Issue]
    """Those of the validators and those of the account."""
    quote: Quote | None = None
    """What the budget was checked against; None where there is no budget."""

    @property
    def by_todays_prices(self) -> bool:
        return self.quote is not None and self.quote.today


class Preflight(ABC):
    """A target that can ask an account whether a spec can be built there."""

    not_checked: ClassVar[str]
    """What is not checked without credentials, as a sentence."""

    @abstractmethod
    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:
        """Return `issues` and those that the account adds; None where there are no credentials."""

    @abstractmethod
    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        """Do the pre-flight of `up`: raise Stop where nobody answers; without `full`, ask only who is calling."""


class Budgeted(ABC):
    """A target whose clusters cost money, so that budgets mean something."""

    price_issues: ClassVar[frozenset[str]]
    """Codes of issues that depend on prices: today's prices, where they are available, have the last word."""

    @abstractmethod
    def budget_note(self, spec: ClusterSpec) -> str:
        """Return what the monthly budget does, as a sentence; empty where the spec has none."""


class ManagedStorage(ABC):
    """A target that creates filesystems which may outlive the cluster (`keep: true`)."""

    storage_removal: ClassVar[str]
    """How a person removes a filesystem that was kept."""


@dataclass(frozen=True)
class HostFacts:
    """What the machine that carries the nodes has."""

    cpus: int
    memory_mb: int


class OnThisMachine(ABC):
    """A target whose nodes share this machine."""

    @abstractmethod
    def host_facts(self) -> HostFacts:
        """Return what this machine has; raise ResourceError where its engine does not answer."""

    @abstractmethod
    def validate_host(self, spec: ClusterSpec, host: HostFacts) -> Iterable[Issue]:
        """Yield what a spec asks for that this machine does not have."""

    @abstractmethod
    def check_name_free(self, spec: ClusterSpec, stack: str) -> None:
        """Raise ResourceError where a resource of another owner has the cluster's name."""

    @abstractmethod
    def explain_error(self, failure: Exception) -> Stop | None:
        """Return the message for an error of this machine's engine; None for any other error."""

    @abstractmethod
    def caches(self, home: Home) -> tuple[CacheEntry, ...]:
        """Return what outlives clusters on purpose: images, training environments, tools."""

    @abstractmethod
    def drop_caches(self, home: Home) -> tuple[CacheEntry, ...]:
        """Remove the caches and return what was removed; raise Stop while a cluster uses one."""
