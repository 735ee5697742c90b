"""Who waited for whom in a rehearsal, read from its timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.names import CONTROLLER, LOGIN
from infra.targets.aws.rehearse.delays import RESOURCES
from infra.targets.aws.rehearse.timeline import JOB, PHASE, WAITING, Event


@dataclass(frozen=True)
class Wait:
    """A time in which one subject could not go on because of another one."""

    waiter: str
    awaited: str
    begin_s: float
    end_s: float


def find_waits(events: Sequence[Event]) -> list[Wait]:
    """Return who waited for whom, by the order that the program and Slurm keep.

    Controller and login wait for network and filesystems, nodes that `up` launches for the controller, and a job for
    every machine that is launched while it waits. Several things that are awaited at the same time follow each other:
    the next one counts from the moment at which the one before it was there.
    """
    waits = [*_wait_for_resources(events), *_wait_for_controller(events), *_wait_for_machines(events)]
    return sorted(waits, key=lambda wait: (wait.begin_s, wait.end_s))


def _wait_for_resources(events: Sequence[Event]) -> Iterator[Wait]:
    resources = [_Span(e.subject, e.at_s, _end(events, e, "available")) for e in events if _is_begun_resource(e)]
    for event in events:
        if event.subject in (CONTROLLER, LOGIN) and event.what == "pending":
            # A machine that replaces another one finds everything there.
            earlier = [e.at_s for e in events if (e.subject, e.what) == (event.subject, "pending")]
            begin_s = max([_begin_of_command(events, event.at_s), *(at_s for at_s in earlier if at_s < event.at_s)])
            yield from _chain(event.subject, [span for span in resources if span.begin_s >= begin_s], event.at_s)


def _wait_for_controller(events: Sequence[Event]) -> Iterator[Wait]:
    starts = [_Span(e.subject, e.at_s, _end(events, e, "ready")) for e in events if e.what == "pending"]
    controllers = [span for span in starts if span.subject == CONTROLLER]
    for span in starts:
        begin_s = _begin_of_command(events, span.begin_s)
        is_launched_by_up = _command_at(events, span.begin_s) == "up" and not _has_job(events, span.begin_s)
        if _is_node(span.subject) and is_launched_by_up:
            yield from _chain(span.subject, [c for c in controllers if c.begin_s >= begin_s], span.begin_s)


def _wait_for_machines(events: Sequence[Event]) -> Iterator[Wait]:
    machines = [_Span(e.subject, e.at_s, _end(events, e, "ready")) for e in events if _is_machine_start(e)]
    jobs = dict.fromkeys(event.subject for event in events if event.subject.startswith(JOB))
    for job in jobs:
        own = [event for event in events if event.subject == job]
        submitted_s = own[0].at_s
        started_s = next((event.at_s for event in own if event.what not in WAITING), None)
        if started_s is not None:
            yield from _chain(job, [m for m in machines if submitted_s <= m.begin_s < started_s], started_s)


@dataclass(frozen=True)
class _Span:
    subject: str
    begin_s: float
    end_s: float | None
    """None if it never got there."""


def _chain(waiter: str, awaited: Sequence[_Span], until_s: float) -> Iterator[Wait]:
    """Yield one wait after the other, each for what was there next."""
    reached_s = 0.0
    for span in sorted(awaited, key=lambda span: span.end_s or until_s):
        # A node may run a job before its own check has ended, and a machine may never be ready.
        begin_s, end_s = max(span.begin_s, reached_s), min(span.end_s or until_s, until_s)
        if begin_s < end_s:
            yield Wait(waiter, span.subject, begin_s, end_s)
            reached_s = end_s


def _end(events: Sequence[Event], begin: Event, state: str) -> float | None:
    """Return when a subject next entered a state; None if it did not, or began anew before."""
    for event in events:
        if event.subject == begin.subject and event.at_s > begin.at_s:
            if event.what == state:
                return event.at_s
            if event.what == begin.what:
                return None
    return None


def _is_begun_resource(event: Event) -> bool:
    return event.subject.startswith(RESOURCES) and event.what in ("pending", "creating")


def _is_machine_start(event: Event) -> bool:
    return event.what == "pending" and (event.subject == CONTROLLER or _is_node(event.subject))


def _is_node(subject: str) -> bool:
    return subject not in (CONTROLLER, LOGIN, PHASE) and not subject.startswith((*RESOURCES, JOB, "ami-"))


def _has_job(events: Sequence[Event], at_s: float) -> bool:
    """Return whether a job was submitted before; machines that are launched from then on may be launched for it."""
    return any(event.subject.startswith(JOB) and event.at_s <= at_s for event in events)


def _command_at(events: Sequence[Event], at_s: float) -> str:
    return next((e.what for e in reversed(events) if e.subject == PHASE and e.at_s <= at_s), "")


def _begin_of_command(events: Sequence[Event], at_s: float) -> float:
    return next((e.at_s for e in reversed(events) if e.subject == PHASE and e.at_s <= at_s), 0.0)
