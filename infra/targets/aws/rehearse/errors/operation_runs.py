"""Every code at every call of an operation that runs in this process, and of the removal of leftovers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.resources.error import ResourceError
from infra.targets.aws.leftovers.kind import AccountRegion
from infra.targets.aws.leftovers.search import find_leftovers, remove_leftover
from infra.targets.aws.rehearse.direct_calls import call_directly
from infra.targets.aws.rehearse.errors.call_sites import NUMBER, name_site, visible_code
from infra.targets.aws.rehearse.errors.coverage import Coverage, Exceptions, is_named, is_retryable
from infra.targets.aws.rehearse.errors.failing_cluster import MACHINE
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operations import Operation, Subject
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.share import FATAL, TRANSIENT, Share
from infra.targets.aws.rehearse.moto_server import Moto
from infra.targets.target import Leftover

SWEEP = "teardown sweep"
# Longer waits would only wait for moto.
_LONGEST_WAIT_S = 0.005
# More than the longest wait between two attempts to remove a resource, less than a person would wait for a test.
_REMOVAL_S = 12.0
_ROUNDS = 5
# Ways in which an operation's sites are divided into halves.
_PARTITIONS = 4
# Without an answer to this call, there is no other one.
_IDENTITY = "sts GetCallerIdentity"
# Calls whose errors are not worth a line: what they ask for is only used if there is an answer.
_QUIET: Mapping[tuple[str, str], str] = {
    ("check", "s3 HEAD /bucket"): "an answer to HEAD has no code; the message says that the caller may not list it",
    ("check (new)", "s3 HEAD /bucket"): "as above",
    ("check", "ec2 RunInstances"): "quotas have a check of their own; a dry run with any other code is named",
    ("check (new)", "ec2 RunInstances"): "as above",
    ("image build", "ssm DeleteParameters #2"): "the next machine deletes the report of one that has ended",
    ("image build", "ssm DeleteParameters #4"): "as above",
}


def cover_operation(
    subject: Subject, operation: Operation, coverage: Coverage, share: Share, show: Callable[[str], None]
) -> None:
    """Run an operation with each of the share's codes at each of its calls; `show` gets a line of progress."""
    with hasten(subject.cluster.moto):
        runs = _OperationRuns(subject, operation, coverage, show)
        sites = sorted(runs.run({}).called)
        if operation.is_independent:
            _meet_many(runs, [site for site in sites if site != _IDENTITY], share)
        else:
            _meet_transient(runs, sites, share)
        for site in sites:
            for code in share.codes:
                if coverage.is_open(Pair(operation.name, site, code)) and not share.is_over:
                    runs.run({site: code})


def _meet_many(runs: _OperationRuns, sites: Sequence[str], share: Share) -> None:
    """Run an operation with errors at many sites at a time, until that reaches nothing new."""
    coverage, fruitless = runs.coverage, 0
    for number in count():
        missing = {
            site: [code for code in share.codes if coverage.is_open(Pair(runs.operation.name, site, code))]
            for site in sites
        }
        chosen = spread_codes(missing, number)
        before = len(coverage.tried)
        if chosen:
            runs.run(chosen)
        fruitless = 0 if len(coverage.tried) > before else fruitless + 1
        if fruitless > _PARTITIONS * 2 or share.is_over:
            return


def _meet_transient(runs: _OperationRuns, sites: Sequence[str], share: Share) -> None:
    """Run an operation with an error that passes at many sites at a time, until that reaches nothing new."""
    coverage, codes = runs.coverage, [code for code in share.codes if code in TRANSIENT]
    tried = -1
    while not share.is_over and tried < len(coverage.tried):
        tried = len(coverage.tried)
        missing = {
            site: [code for code in codes if coverage.is_open(Pair(runs.operation.name, site, code))] for site in sites
        }
        if chosen := spread_transient_codes(missing):
            runs.run(chosen)


def spread_transient_codes(missing: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the codes by site for a run: different ones, and only one call of a kind, whose repetition is the next."""
    chosen: dict[str, str] = {}
    kinds: set[str] = set()
    for site, codes in missing.items():
        kind = site.partition(NUMBER)[0]
        unused = next((code for code in codes if code not in chosen.values()), "")
        if unused and kind not in kinds:
            chosen[site] = unused
            kinds.add(kind)
    return chosen


def spread_codes(missing: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """Return the codes by site for a run with a number: half of the sites meet one that they have not met yet.

    The other half succeeds, because a call may follow only after another one succeeds; runs divide the sites in
    different ways. Sites meet different codes, so that an output that names a code names a call.
    """
    divisor = 2 ** (number // 2 % _PARTITIONS)
    chosen: dict[str, str] = {}
    for position, (site, codes) in enumerate(missing.items()):
        unused = [code for code in codes if code not in chosen.values()]
        if unused and position // divisor % 2 == number % 2:
            chosen[site] = unused[position % len(unused)]
    return chosen


@dataclass
class _OperationRuns:
    subject: Subject
    operation: Operation
    coverage: Coverage
    show: Callable[[str], None]

    def __post_init__(self) -> None:
        self.before = self.subject.cluster.list_paid()
        self.covered_before = len(self.coverage.outcomes)

    def run(self, codes: Mapping[str, str]) -> Injection:
        """Run the operation once with errors by site, judge what it says, and check that the next run can begin."""
        operation, failed, problems = self.operation, False, len(self.coverage.problems)
        errors = Injection(lambda site: codes.get(site, ""), is_numbered=not operation.is_independent)
        operation.prepare(self.subject)
        prepared = self.subject.cluster.list_paid()
        self.subject.notes.lines.clear()
        with self.subject.cluster.interfere(errors):
            try:
                text = operation.run(self.subject)
            except Stop as stop:
                text, failed = f"{stop.what}. Fix: {stop.fix}", True
                self._require(bool(stop.fix), f"no fix: {text}")
            except ResourceError as error:
                text, failed = str(error), True
            except Exception as error:  # whatever it is, a user would see a traceback
                text, failed = repr(error), True
                self._require(condition=False, problem=f"{errors.injected}: a traceback: {error!r}")
        text = "\n".join([*self.subject.notes.lines, text])
        self._require(not failed or bool(errors.injected), f"it fails without an error: {text}")
        if not errors.injected:
            # After an error come other calls: a retry, or the removal of what is not complete.
            self.coverage.trace(operation.name, errors.called)
        quiet = {site for command, site in _QUIET if command == operation.name}
        self.coverage.judge(operation.name, errors, text, failed=failed, exceptions=Exceptions(quiet=quiet))
        self._check_left(prepared, errors, text)
        if len(self.coverage.problems) > problems:
            self.coverage.pending.clear()
        self.coverage.confirm()
        covered = format_count(len(self.coverage.outcomes) - self.covered_before, "error")
        self.show(f"{operation.name}: {covered} at its calls")
        return errors

    def _check_left(self, prepared: set[str], errors: Injection, text: str) -> None:
        """Everything paid that a run adds and leaves is named, and gone when the next run has begun."""
        left = self.subject.cluster.list_paid() - prepared
        machines = [what for what in left if what.startswith(MACHINE)]
        for what in machines:
            is_named_there = what.removeprefix(MACHINE) in text
            self._require(is_named_there, f"{errors.injected}: {what} is left and not named:\n{text}")
        if self.operation.clear:
            self.operation.clear(self.subject)
        stays = sorted(self.subject.cluster.list_paid() - self.before)
        self._require(not stays, f"{errors.injected}: {', '.join(stays)} left for good")
        self.before |= set(stays)
        self.subject.cluster.forget_ended_machines()

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            self.coverage.problems.append(f"{self.operation.name}: {problem}")


@dataclass
class Barrage:
    """Fails every call of a site until all its open codes were injected."""

    list_open: Callable[[str], Sequence[str]]
    """Returns the codes that a site has not met yet."""
    remaining: dict[str, list[str]] = field(default_factory=dict)
    """Codes by site."""
    injected: list[tuple[str, str]] = field(default_factory=list)
    """Sites and codes of the current run."""

    def __call__(self, service: str, action: str, params: dict[str, str]) -> str:
        site = name_site(service, action, params)
        if site not in self.remaining:
            self.remaining[site] = list(self.list_open(site))
        if not self.remaining[site]:
            return ""
        self.injected.append((site, self.remaining[site].pop(0)))
        return self.injected[-1][1]


def cover_sweep(subject: Subject, coverage: Coverage, share: Share) -> None:
    """Remove the whole cluster without Pulumi, as `teardown` does without a state, with each code at each call."""
    ordered = [code for kind in (TRANSIENT, FATAL) for code in share.codes if code in kind]

    def list_open(site: str) -> list[str]:
        return [code for code in ordered if coverage.is_open(Pair(SWEEP, site, code)) and not share.is_over]

    barrage, account = Barrage(list_open), AccountRegion(subject.cluster.region)
    with hasten(subject.cluster.moto):
        for _ in range(_ROUNDS):
            listed = find_leftovers(subject.deployment.cluster, subject.cluster.region).resources
            if not listed:
                break
            for leftover in listed:
                _remove(leftover, account, subject, barrage, coverage)
    coverage.trace(SWEEP, barrage.remaining)
    if listed:
        coverage.pending.clear()
        left = ", ".join(f"{leftover.kind} {leftover.name}" for leftover in listed)
        raise Stop(f"{SWEEP}: {left} cannot be removed", code=FAILED)
    coverage.confirm()


def _remove(leftover: Leftover, account: AccountRegion, subject: Subject, barrage: Barrage, coverage: Coverage) -> None:
    """Remove a resource, as often as it takes until its calls have met all codes."""
    while True:
        barrage.injected.clear()
        failure = ""
        with subject.cluster.interfere(barrage):
            try:
                remove_leftover(leftover, time.monotonic() + _REMOVAL_S, account, sleep=_sleep)
            except ResourceError as error:
                failure = str(error)
        if not barrage.injected:
            # Removed, or in use until its users are: the next round removes it.
            return
        *passed, last = barrage.injected
        coverage.tried |= {Pair(SWEEP, *entry) for entry in barrage.injected}
        for site, code in passed if failure else barrage.injected:
            # Any other error that the removal went on after was neither repeated nor named: it is not covered.
            if is_retryable(site, code):
                coverage.pending[Pair(SWEEP, site, code)] = "retried"
        if not failure:
            return
        if is_named(visible_code(*last), failure):
            coverage.pending[Pair(SWEEP, *last)] = "explained"
        else:
            coverage.problems.append(f"{Pair(SWEEP, *last)}: not named: {failure}")


def _sleep(seconds: float) -> None:
    """Wait with the function that `hasten` replaces; a default argument would be the one before."""
    time.sleep(seconds)


@contextmanager
def hasten(moto: Moto) -> Iterator[None]:
    """Shorten every wait of this process during a block, and let it call moto without a network.

    AWS's library waits before it repeats a call.
    """
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(float(seconds), _LONGEST_WAIT_S))
    try:
        with call_directly(moto):
            yield
    finally:
        time.sleep = sleep
