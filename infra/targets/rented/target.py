"""The base of targets that rent machines from a cloud and then set them up over SSH, like hosts."""

# ruff: noqa: PLC0415
# SSH and the library of a cloud are imported inside methods: every command imports every target's class.
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Protocol

from cluster import names
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.resources.error import ResourceError
from infra.targets.cost import Quote
from infra.targets.mixins import Flight, ManagedStorage, Preflight, Pushes
from infra.targets.rented.state import read_cluster
from infra.targets.target import Console, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from infra.resources.job_queue import JobQueue
    from infra.targets.facts import Facts
    from infra.targets.rented.cost import Item


class QuoteModule(Protocol):
    """A target's `quote.py`."""

    SOURCE: str
    """Who names the prices."""

    def quote_items(self, spec: ClusterSpec) -> tuple[Item, ...]: ...


class LeftoversModule(Protocol):
    """A target's `leftovers.py`."""

    def find_leftovers(self, deployment: Deployment) -> Leftovers: ...
    def remove_leftover(self, leftover: Leftover, until: float) -> None: ...
    def measure_leftover(self, leftover: Leftover) -> int | None: ...


class RentedTarget(Target, ManagedStorage, Preflight, Pushes):
    """A target whose nodes are machines of a cloud, in an account that the target's section names."""

    cloud: ClassVar[str]
    """The cloud's name, for messages."""
    login_fix: ClassVar[str]
    """How to log in."""
    account: ClassVar[str]
    """The field of the section that names the account, which is an input of every resource, too."""
    account_example: ClassVar[str]
    resource: ClassVar[str]
    """The end of the Pulumi type of the resources that have the cluster's labels."""
    library: ClassVar[str]
    """A module of the cloud's library."""
    connect_timeout_s = 10
    setup_phases = ("apt", "venv", "pulumi")

    @abstractmethod
    def has_credentials(self) -> bool:
        """Return whether there is something to log in with; raise ModuleNotFoundError without the cloud's library."""

    @abstractmethod
    def judge_account(self, spec: ClusterSpec) -> Iterable[Issue]:
        """Ask the account whether a valid spec can be built there, and return the issues."""

    @abstractmethod
    def load_quote(self) -> QuoteModule:
        """Import the module that asks the cloud for prices."""

    @abstractmethod
    def load_leftovers(self) -> LeftoversModule:
        """Import the module that finds and removes what exists."""

    def can_ask(self) -> bool:
        """Return whether the cloud can be asked: its library and credentials are there."""
        try:
            return self.has_credentials()
        except ModuleNotFoundError:
            return False

    def require_library(self) -> None:
        """Raise Stop if the cloud's library is not installed."""
        try:
            import_module(self.library)
        except ModuleNotFoundError as missing:
            what = f"target {self.name} needs the Python package {missing.name}, which is not installed"
            raise Stop(what, f"run `make setup`, or install muster with the extra `{self.name}`") from missing

    def require_login(self) -> None:
        """Raise Stop if there is nothing to log in with, or the cloud's library is not installed."""
        self.require_library()
        if not self.has_credentials():
            raise self._build_login_error()

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def quote(self, spec: ClusterSpec, console: Console) -> Quote:
        from infra.targets.rented.cost import add_up

        table = self.cost(spec)
        source = f"instance prices of {table.priced_on}"
        if not self.can_ask():
            return Quote(table, f"{source}; today's are asked for only with a login to {self.cloud}")
        module = self.load_quote()
        try:
            with console.status(f"asking {self.cloud} for prices"):
                items = module.quote_items(spec)
        except ResourceError as failed:
            return Quote(table, f"{source}; today's could not be read ({failed})")
        today = datetime.now(UTC).date()
        cost = add_up(items, today, table.price_page)
        return Quote(cost, f"prices of today, {today}, by {module.SOURCE}", today=True)

    def leftovers(self, deployment: Deployment) -> Leftovers:
        self.require_login()
        return self.load_leftovers().find_leftovers(deployment)

    def remove(self, leftover: Leftover, until: float) -> None:
        self.load_leftovers().remove_leftover(leftover, until)

    def measure(self, leftover: Leftover) -> int | None:
        return self.load_leftovers().measure_leftover(leftover)

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:
        section, group = f"{self.name}.", f"{self.name}.groups."
        if not path.startswith(section):
            return None
        nodes = self.plan(spec).nodes
        if path.startswith(group):
            name = path.removeprefix(group).partition(".")[0]
            return [node.name for node in nodes if node.group == name]
        role = path.removeprefix(section).partition(".")[0]
        return [node.name for node in nodes if role not in (names.CONTROLLER, names.LOGIN) or node.role == role]

    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:  # noqa: ARG002
        if any(issue.level == "error" for issue in issues):
            return Flight(issues)
        if not self.can_ask():
            return None
        with console.status(f"asking {self.cloud}"):
            return Flight([*issues, *self.judge_account(spec)])

    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        self.require_library()
        flight = self.preflight(spec, issues, stack, console) if full else Flight(issues)
        if flight is None:
            raise self._build_login_error()
        return flight

    def prepare(self, home: Home, console: Console) -> None:  # noqa: ARG002  # nothing is fetched
        self.require_library()

    def deployment(self, stack: StackHome, cluster: str, spec: ClusterSpec | None) -> Deployment:
        existing = read_cluster(stack.state, self.resource, self.account)
        section = spec.section(self.name, self.section) if spec and self.section else None
        account = existing[1] if existing else getattr(section, self.account, "")
        if not account:
            what = f"neither the state nor the stack file of {stack.name} names the {self.account} of cluster {cluster}"
            fix = f"write `{self.name}: {{{self.account}: {self.account_example}}}` into {stack.file}"
            raise Stop(what, fix)
        return Deployment(cluster, stack.name, account=account)

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:  # noqa: ARG002
        existing = read_cluster(stack.state, self.resource, self.account)
        return Deployment(existing[0], stack.name, account=existing[1]) if existing else None

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.targets.hosts.queue import open_queue

        return open_queue(deployment)

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:  # noqa: ARG002
        from infra.targets.hosts.facts import gather

        return gather(inventory, stack)

    def _build_login_error(self) -> Stop:
        return Stop(f"there are no credentials for {self.cloud}", self.login_fix)
