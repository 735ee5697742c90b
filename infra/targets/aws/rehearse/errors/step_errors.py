"""Errors at every call of a step of Pulumi: the creation, reading, change or deletion of one resource.

A step that fails is repeated here, in the way in which Pulumi would in the next `up` or `teardown`, until each of its
calls has met every code. So one `up` is enough for all codes, where the engine alone would need one for each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from infra.targets.aws.refusals import explain_refusal
from infra.targets.aws.rehearse.errors.call_sites import name_site, visible_code
from infra.targets.aws.rehearse.errors.coverage import Coverage, is_named, is_retryable
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.share import FATAL, TRANSIENT, Share

_UP = "muster up"


@dataclass
class Attempt:
    """One attempt of a step, and the errors that its calls have met."""

    injected: list[Pair] = field(default_factory=list)
    repeated: set[Pair] = field(default_factory=set)
    """Those whose call was made again."""


class StepErrors:
    """Decides which calls fail. Given to `Moto.interfere`; only calls of the thread of an attempt meet errors."""

    def __init__(self, coverage: Coverage, share: Share) -> None:
        self.command = ""
        """Command of muster that runs now."""
        self._coverage, self._share = coverage, share
        self._open: dict[str, tuple[list[Pair], list[Pair]]] = {}
        """Transient and other errors that are left, by site."""
        self._lock = threading.Lock()
        self._here = threading.local()

    def begin(self, command: str) -> None:
        """Let the calls of a command meet errors from now on."""
        self.command = command
        self._open.clear()

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Let the calls of this thread meet errors during a block."""
        self._here.attempt = attempt = Attempt()
        try:
            yield attempt
        finally:
            self._here.attempt = None

    def __call__(self, service: str, action: str, params: dict[str, str]) -> str:
        attempt: Attempt | None = getattr(self._here, "attempt", None)
        if attempt is None:
            return ""
        site = name_site(service, action, params)
        with self._lock:
            pair = self._take(site, attempt)
        if pair:
            attempt.injected.append(pair)
        return pair.code if pair else ""

    def judge(self, attempt: Attempt, failure: str) -> None:
        """Judge the errors of an attempt by what became of them; `failure` is empty if the step succeeded."""
        named = {pair for pair in attempt.injected if failure and is_named(visible_code(pair.site, pair.code), failure)}
        with self._lock:
            for pair in attempt.injected:
                self._coverage.tried.add(pair)
                is_repeated = pair in attempt.repeated
                if is_repeated and is_retryable(pair.site, pair.code):
                    self._coverage.pending[pair] = "retried"
                elif pair in named and pair.code in FATAL and _has_fix(failure):
                    self._coverage.pending[pair] = "explained"
                elif not failure or (is_repeated and named):
                    # The launcher tries its next option, for example; what then failed is named.
                    self._coverage.pending[pair] = "accepted"
                else:
                    problem = "the step failed without naming it and a fix" if pair.code in FATAL else "not repeated"
                    self._coverage.problems.append(f"{pair}: {problem}: {failure}")

    def _take(self, site: str, attempt: Attempt) -> Pair | None:
        """Return the next error of a call: one that passes, then, when the call is repeated, one that does not.

        A step may go on after the latter with a call of the same kind, as the launcher does after a shortage.
        """
        if site not in self._open:
            pairs = self._coverage.list_open_at(self.command, site, self._share.codes)
            self._open[site] = (
                [pair for pair in pairs if pair.code in TRANSIENT],
                [pair for pair in pairs if pair.code in FATAL],
            )
        transient, fatal = self._open[site]
        earlier = [pair for pair in attempt.injected if pair.site == site]
        attempt.repeated.update(earlier)
        if self._share.is_over:
            return None
        if transient and (not earlier or earlier[-1].code in FATAL):
            return transient.pop(0)
        return fatal.pop(0) if fatal else None


def _has_fix(failure: str) -> bool:
    """Return whether a failure has its own fix, or muster adds one."""
    return " Fix: " in failure or bool(explain_refusal(failure, _UP))
