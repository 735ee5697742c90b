"""Which error met which call, what came of it, and how many of all pairs that is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from infra.targets.aws.launcher.error_codes import classify_code
from infra.targets.aws.rehearse.errors.call_sites import read_sites, visible_code
from infra.targets.aws.rehearse.errors.classes import group_codes
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.pair import Outcome, Pair
from infra.targets.aws.rehearse.errors.record import Record
from infra.targets.aws.rehearse.moto_errors import render_error
from infra.targets.error_coverage import CommandCoverage

_BAD_REQUEST, _SERVER_ERROR = 400, 500


@dataclass(frozen=True)
class Exceptions:
    """Sites of a command whose errors need not be named."""

    optional: Collection[str] = ()
    """Their errors never end the command, so that another one did."""
    quiet: Collection[str] | None = None
    """Their errors need not be named if the command succeeds; None: those of any site."""


@dataclass
class Coverage:
    """The outcome of each pair, and what should not have happened."""

    sites: Mapping[str, Sequence[str]]
    """The listed sites of each command."""
    record: Record | None = None
    """Where covered pairs are kept; those that it has are not covered again."""
    outcomes: dict[Pair, Outcome] = field(default_factory=dict)
    """Pairs that this rehearsal has covered."""
    pending: dict[Pair, Outcome] = field(default_factory=dict)
    """Pairs that count as soon as what follows has succeeded: the next `up`, or the removal of everything."""
    tried: set[Pair] = field(default_factory=set)
    """Pairs that were judged, which this rehearsal does not repeat."""
    problems: list[str] = field(default_factory=list)
    traced: set[tuple[str, str]] = field(default_factory=set)
    """Command and site of every call that was made."""

    def __post_init__(self) -> None:
        self.earlier = self.record.read() if self.record else {}

    def trace(self, command: str, called: Collection[str]) -> None:
        self.traced |= {(command, site) for site in called}

    def judge(
        self, command: str, injection: Injection, output: str, *, failed: bool, exceptions: Exceptions | None = None
    ) -> None:
        """Judge the errors of a run, which have different codes unless they pass.

        A command that fails has to name an error. Others that it does not name stay open: it may have done without
        them, or have ended before it would have named them.
        """
        quiet, optional = (exceptions.quiet, exceptions.optional) if exceptions else (None, ())
        codes = {Pair(command, site, code): visible_code(site, code) for site, code in injection.injected.items()}
        named = {pair for pair, code in codes.items() if is_named(code, output)}
        if failed and codes and not named:
            self.tried |= set(codes)
            pairs = ", ".join(map(str, codes))
            self.problems.append(f"{pairs}: the command failed without naming it:\n{output}")
            return
        for pair in codes:
            is_optional = pair.site in optional if failed else quiet is None or pair.site in quiet
            if failed and pair in named:
                self.pending[pair] = "explained"
            elif pair.site in injection.repeated and is_retryable(pair.site, pair.code):
                self.pending[pair] = "retried"
            elif is_optional or pair in named:
                self.pending[pair] = "accepted"
            elif failed:
                continue
            else:
                self.problems.append(f"{pair}: the command succeeded without naming it:\n{output}")
            self.tried.add(pair)

    def confirm(self) -> None:
        """Count the pending pairs as covered, and record them."""
        if self.record:
            self.record.add(self.pending)
        self.outcomes |= self.pending
        self.pending.clear()

    def drop_explained(self, command: str) -> None:
        """Count no pair of a command that failed, although its errors pass."""
        self.pending = {p: o for p, o in self.pending.items() if p.command != command or o != "explained"}

    def is_open(self, pair: Pair) -> bool:
        """Return whether a pair was neither tried in this rehearsal nor covered in an earlier one."""
        return pair not in self.tried and pair not in self.earlier

    def list_open(self, command: str, codes: Sequence[str]) -> list[Pair]:
        """Return the pairs of a command's listed sites that this rehearsal can still cover."""
        return [pair for site in self.sites.get(command, ()) for pair in self.list_open_at(command, site, codes)]

    def list_open_at(self, command: str, site: str, codes: Sequence[str]) -> list[Pair]:
        """Return the pairs of a site that this rehearsal can still cover; none if it is not listed."""
        if site not in self.sites.get(command, ()):
            return []
        pairs = (Pair(command, site, code) for code in codes)
        return [pair for pair in pairs if self.is_open(pair)]

    @property
    def unlisted(self) -> list[tuple[str, str]]:
        """Return the calls of the commands in the list that were made and are not in it."""
        listed = {(command, site) for command, sites in self.sites.items() for site in sites}
        return sorted((command, site) for command, site in self.traced - listed if command in self.sites)

    def count(self, command: str, codes: Sequence[str]) -> CommandCoverage:
        """Return how many pairs a command's listed sites have with these codes, and how many of them are covered."""
        sites, classes = self.sites[command], group_codes(codes)
        pairs = [Pair(command, site, code) for site in sites for code in codes]
        now = {pair for pair in pairs if pair in self.outcomes}
        ever = {(pair.site, pair.code) for pair in pairs if self._get_outcome(pair)}
        alike = sum(any((site, code) in ever for code in names) for site in sites for names in classes)
        return CommandCoverage(command, len(sites), len(pairs), len(now), len(ever), len(sites) * len(classes), alike)

    def render(self, codes: Sequence[str]) -> Iterator[str]:
        """Yield a line for each site with the outcomes of its codes, those of earlier rehearsals too."""
        for command, sites in self.sites.items():
            for site in sites:
                outcomes = (self._get_outcome(Pair(command, site, code)) for code in codes)
                counts = Counter(outcome for outcome in outcomes if outcome)
                described = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
                yield f"{command}: {site}: {described or 'nothing'}; {len(codes) - counts.total()} not covered"

    def _get_outcome(self, pair: Pair) -> Outcome | None:
        return self.outcomes.get(pair) or self.earlier.get(pair)


def restrict_sites(*commands: str) -> dict[str, tuple[str, ...]]:
    """Return the listed sites of some commands."""
    return {command: sites for command, sites in read_sites().items() if command in commands}


def is_named(code: str, text: str) -> bool:
    """Return whether a text names an error code, as a word of its own."""
    return re.search(rf"(?<![\w.]){re.escape(code)}(?![\w])", text) is not None


def is_retryable(site: str, code: str) -> bool:
    """Return whether AWS's libraries repeat a call after this error.

    After an answer to HEAD with status 400 they ask for the bucket's region and repeat the call there.
    """
    service, method = site.split()[:2]
    status = int(render_error(service, code)[0].split()[0])
    is_redirected = method == "HEAD" and status == _BAD_REQUEST
    return status >= _SERVER_ERROR or is_redirected or classify_code(code) == "throttle"
