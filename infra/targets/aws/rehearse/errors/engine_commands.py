"""`up`, a change of sizes and `teardown` with the real engine, with an error at every call that they make.

In one cycle each site of each command meets one code that it has not met yet. Errors that pass must not stop a command.
After any other, the command is repeated until it succeeds: Pulumi goes on with resources that do not depend on the
failed ones, so that one run meets many errors, and the next continues from there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.errors.call_sites import read_sites
from infra.targets.aws.rehearse.errors.classes import order_by_class
from infra.targets.aws.rehearse.errors.coverage import Coverage, Exceptions
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operations import SEARCH
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.share import FATAL, TRANSIENT, Share
from infra.targets.target import Console

UP, RESIZE, TEARDOWN = "up", "resize", "teardown"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    # The checks before `up` are an operation of their own; with them, calls of Pulumi would not meet an error.
    UP: ("up", "--no-preflight"),
    RESIZE: ("up", "--no-preflight"),
    TEARDOWN: ("teardown", "--yes"),
}
"""The commands with the engine, in the order of a cycle."""
# `teardown` follows the first failed `up` in the first cycle, the second in the second, and so on.
_DEPTHS = 8
_CONTINUES = re.compile(r"(muster|make) (up|teardown|check)|run the command again")
UNCHANGED = "nothing to change"


@dataclass(frozen=True)
class Cycle:
    """The codes of a cycle: each site meets one of them, in the next cycle the next.

    In the first cycles, as many as there are classes of codes, each site meets a code of each class.
    """

    codes: tuple[str, ...]
    number: int

    @property
    def is_transient(self) -> bool:
        return set(self.codes) <= set(TRANSIENT)

    def order(self, position: int) -> tuple[str, ...]:
        """Return the codes for the site at a position of the list; it meets the first that it has not met yet."""
        number, ordered = self.number, []
        for codes in order_by_class(self.codes):
            first = (position + number) % len(codes)
            ordered.append(codes[first:] + codes[:first])
            if 0 <= number < len(codes):
                # The round of this cycle comes first.
                ordered.insert(0, ordered.pop())
            number -= len(codes)
        return tuple(chain.from_iterable(ordered))

    def __str__(self) -> str:
        kind = "transient" if self.is_transient else "permanent"
        return f"{kind} errors, cycle {self.number + 1} of {len(self.codes)}"


def plan_cycles(codes: Sequence[str]) -> list[Cycle]:
    """Return the cycles in which each site meets each of the codes once; transient and other errors are not mixed."""
    split = (tuple(code for code in codes if code in kind) for kind in (TRANSIENT, FATAL))
    return [Cycle(kind, number) for kind in split for number in range(len(kind))]


@dataclass
class EngineCycle:
    """A cycle under way."""

    cluster: FailingCluster
    coverage: Coverage
    share: Share
    cycle: Cycle
    console: Console
    met: dict[str, set[str]] = field(default_factory=dict)
    """Sites that have met their error, by command."""
    failed_ups: int = 0

    def up(self) -> None:
        """Create the cluster; a second `up` then finds nothing to change."""
        self._repeat(UP)
        self._require_unchanged()
        self.coverage.confirm()

    def resize(self) -> None:
        """Change the size of every group; this, too, is complete."""
        if self.share.is_over or not self.coverage.list_open(RESIZE, self.cycle.codes):
            return
        self.cluster.add_nodes(1)
        self._repeat(RESIZE)
        self._require_unchanged()
        self.coverage.confirm()

    def teardown(self) -> None:
        """Remove the cluster; nothing of it is left in the account or in the receipt.

        Errors of a run differ, and `teardown` removes what Pulumi could not: it can succeed before every call has met
        one. The cluster is created again for the others, as long as that reaches some of them.
        """
        while True:
            met = len(self.met.get(TEARDOWN, ()))
            self._repeat(TEARDOWN)
            self.cluster.require_nothing_left(f"after `muster teardown` with {self.cycle}")
            self.coverage.confirm()
            if self.share.is_over or not self._list_unmet(TEARDOWN) or len(self.met[TEARDOWN]) == met:
                return
            self._create_again()

    def _list_unmet(self, name: str) -> list[str]:
        """Return the listed calls that have met no error in this cycle, and still can."""
        missing = {pair.site for pair in self.coverage.list_open(name, self.cycle.codes)}
        return sorted(missing - self.met.get(name, set()))

    def _create_again(self) -> None:
        code, output = self.cluster.run(*COMMANDS[UP])
        self.console.say(f"{self.cycle}: up without errors, for calls of teardown that have met none")
        if code:
            raise Stop(f"`muster up` fails without errors of AWS:\n{output}", code=FAILED)

    def _repeat(self, name: str) -> None:
        """Run a command until it succeeds: each run that fails has met an error at one more of the listed calls."""
        for run in count(1):
            errors = self._inject(name)
            title = f"{self.cycle}: {name}, run {run}"
            with self.console.status(title):
                code, output = self.cluster.run(*COMMANDS[name], errors=errors)
            self.met.setdefault(name, set()).update(errors.injected)
            self.coverage.judge(name, errors, output, failed=code != 0, exceptions=self._except_listings(name))
            if name == RESIZE and not errors.injected:
                # `up` and `teardown` are traced without errors, before the other commands.
                self.coverage.trace(name, errors.called)
            met = format_count(len(errors.injected), "error")
            self.console.say(f"{title}: {met}, {'failed' if code else 'succeeded'}")
            if code == 0:
                return
            self._check_failure(name, errors, output)

    def _require_unchanged(self) -> None:
        code, output = self.cluster.run(*COMMANDS[UP])
        if code or UNCHANGED not in output:
            raise Stop(f"`muster up` is not complete after {self.cycle}:\n{output}", code=FAILED)

    def _except_listings(self, name: str) -> Exceptions:
        """Return the calls with which `teardown` lists resources: it goes on without a listing, and lists again."""
        return Exceptions(optional=read_sites().get(SEARCH, ()) if name == TEARDOWN else ())

    def _check_failure(self, name: str, errors: Injection, output: str) -> None:
        if not errors.injected:
            raise Stop(f"`muster {name}` failed without an error of AWS:\n{output}", code=FAILED)
        if self.cycle.is_transient:
            what = f"{name}: it failed, although AWS's errors pass ({self.cycle}):\n{output}"
            self.coverage.problems.append(what)
            self.coverage.drop_explained(name)
        if not _CONTINUES.search(output):
            self.coverage.problems.append(f"{name}: the output names no command that continues:\n{output}")
        if name == UP:
            self.failed_ups += 1
            if self.failed_ups == self.cycle.number % _DEPTHS + 1:
                self._remove_half()

    def _remove_half(self) -> None:
        """Remove a cluster that is half created."""
        code, output = self.cluster.run(*COMMANDS[TEARDOWN])
        self.console.say(f"{self.cycle}: teardown of what `up` has created so far")
        if code:
            raise Stop(f"`muster teardown` fails after a failed `up`:\n{output}", code=FAILED)
        self.cluster.require_nothing_left(f"after `muster teardown` of a failed `up` with {self.cycle}")

    def _inject(self, name: str) -> Injection:
        errors = Injection(lambda site: self._choose(name, site, errors.injected.values()))
        return errors

    def _choose(self, name: str, site: str, used: Collection[str]) -> str:
        """Return an open code. Errors that stay differ in a run, so that an output that names a code names a call.

        Only listed calls meet one. Others are made after a failure, most of them to read what exists, as a change of
        sizes does too: an error there ends `up` before it creates anything, so that a cycle took twice as many runs.
        """
        listed = self.coverage.sites.get(name, ())
        if self.share.is_over or site in self.met.get(name, ()) or site not in listed:
            return ""
        codes = self.cycle.order(listed.index(site))
        if not self.cycle.is_transient:
            codes = tuple(code for code in codes if code not in used)
        return next((code for code in codes if self.coverage.is_open(Pair(name, site, code))), "")
