"""The target protocol: what every place that machines come from can do; mixins.py has what only some can.

Adding a target is one folder with a class that implements `Target` and one line in registry.py; docs/add-a-target.md
is the checklist. Modules that implement this protocol stay light: they load the libraries of a cloud, of Docker or of
Pulumi inside the methods that need them, because every command imports every target's class.
"""

# ruff: noqa: ARG002  # Default methods ignore arguments that only some targets need.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
    removal_words: ClassVar[str] = "and all data"
    """What teardown removes with the nodes, for its question."""
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

    def describe_retries(self, stack: StackHome) -> str:  # for targets with an API that limits calls
        """Return how many calls of the last run were repeated, and how long that took; empty if none were."""
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

    def removal_notes(self, existed: Iterable[Leftover]) -> Sequence[str]:
        """Return remarks on how resources were removed that existed before teardown, for the receipt."""
        return ()
