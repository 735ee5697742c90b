"""Carries planned steps out on one node: as few round trips as possible, each step reported as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bootstrap.action import DONE, Action, batch
from bootstrap.errors import BootstrapError
from bootstrap.plan import Planned
from bootstrap.progress import Event, Report, State
from bootstrap.transport.base import Transport, TransportError

Pair = tuple[str, Action]


def carry_out(transport: Transport, node: str, planned: Sequence[Planned], report: Report) -> None:
    for one in planned:
        if not one.actions:
            _say(report, node, one.step.name, "skipped" if one.skipped else "ok", one.skipped)
    pairs = [(one.step.name, action) for one in planned for action in one.actions]
    for _, group in groupby(enumerate(pairs), lambda pair: pair[0] if pair[1][1].slow else -1):
        _round_trip(transport, node, [pair for _, pair in group], report)


def _round_trip(transport: Transport, node: str, pairs: list[Pair], report: Report) -> None:
    script, data = batch(action for _, action in pairs)
    done = 0

    def on_line(line: str) -> None:
        nonlocal done
        if line.startswith(DONE):
            done += 1
            step = pairs[done - 1][0]
            if done == len(pairs) or pairs[done][0] != step:
                _say(report, node, step, "changed", ", ".join(a.title for s, a in pairs if s == step))
            if done < len(pairs) and (pairs[done][0] != step):
                _say(report, node, pairs[done][0], "start", pairs[done][1].title)
        elif line.strip() and pairs[done][1].slow:
            _say(report, node, pairs[done][0], "start", line.strip())

    _say(report, node, pairs[0][0], "start", pairs[0][1].title)
    try:
        completed = transport.run(script, stdin=data, timeout=max(a.timeout for _, a in pairs), on_line=on_line)
    except TransportError as problem:
        step, action = pairs[min(done, len(pairs) - 1)]
        _say(report, node, step, "failed", problem.line)
        fix = f"look at the node, then run again; it was at: {action.title}"
        raise BootstrapError(node, step, problem.line, action.log, fix) from None
    if completed.code != 0:
        step, action = pairs[done]
        line = (completed.err.strip().splitlines() or [f"exit code {completed.code}"])[-1]
        _say(report, node, step, "failed", f"{action.title}: {line}")
        raise BootstrapError(node, step, f"{action.title}: {line}", action.log, action.fix)


def _say(report: Report, node: str, step: str, state: State, detail: str = "") -> None:
    report(Event("bootstrap", node, step, state, detail))
