"""Execute planned steps on one node, in as few round trips as possible, and report each step as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bootstrap.action import DONE, Action, join_actions
from bootstrap.errors import BootstrapError
from bootstrap.plan import PlannedStep
from bootstrap.progress import Event, Report, State
from bootstrap.transport.base import Transport, TransportError

StepAction = tuple[str, Action]
"""The name of a step, and one of its actions."""


def execute_steps(transport: Transport, node: str, planned: Sequence[PlannedStep], report: Report) -> None:
    """Run the actions of all steps in order; raise BootstrapError at the first that fails."""
    for step in planned:
        if not step.actions:
            _report(report, node, step.step.name, "skipped" if step.skipped else "ok", step.skipped)
    pairs = [(step.step.name, action) for step in planned for action in step.actions]
    # A slow action has its own round trip; the actions between two slow ones share one.
    for _, group in groupby(enumerate(pairs), lambda pair: pair[0] if pair[1][1].slow else -1):
        _run_round_trip(transport, node, [pair for _, pair in group], report)


def _run_round_trip(transport: Transport, node: str, pairs: list[StepAction], report: Report) -> None:
    script, data = join_actions(action for _, action in pairs)
    done = 0

    def on_line(line: str) -> None:
        nonlocal done
        if line.startswith(DONE):
            done += 1
            step = pairs[done - 1][0]
            if done == len(pairs) or pairs[done][0] != step:
                _report(report, node, step, "changed", ", ".join(a.title for s, a in pairs if s == step))
            if done < len(pairs) and (pairs[done][0] != step):
                _report(report, node, pairs[done][0], "start", pairs[done][1].title)
        elif line.strip() and pairs[done][1].slow:
            _report(report, node, pairs[done][0], "start", line.strip())

    _report(report, node, pairs[0][0], "start", pairs[0][1].title)
    try:
        completed = transport.run(script, stdin=data, timeout=max(a.timeout for _, a in pairs), on_line=on_line)
    except TransportError as error:
        step, action = pairs[min(done, len(pairs) - 1)]
        _report(report, node, step, "failed", error.line)
        fix = f"check the node, then run again; the action that was running: {action.title}"
        raise BootstrapError(node, step, error.line, action.log, fix) from None
    if completed.code != 0:
        step, action = pairs[done]
        line = (completed.err.strip().splitlines() or [f"exit code {completed.code}"])[-1]
        _report(report, node, step, "failed", f"{action.title}: {line}")
        raise BootstrapError(node, step, f"{action.title}: {line}", action.log, action.fix)


def _report(report: Report, node: str, step: str, state: State, detail: str = "") -> None:
    report(Event("bootstrap", node, step, state, detail))
