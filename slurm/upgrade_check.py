"""Compare the queue and the accounting before and after an upgrade: no job may be lost, restarted or changed."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.plural import format_count
from slurm.control.snapshot import QueuedJob, Snapshot

# The states in which an upgrade, rather than the job or its user, may have ended a job.
_SUSPICIOUS_ENDS = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "DEADLINE"})


def find_differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return a line for each difference that the passing of time does not explain; none if the upgrade lost nothing."""
    return [
        *_find_in_queue(before, after),
        *_find_in_records(before, after),
        *(f"accounting lost: {line}" for line in sorted(before.accounts - after.accounts)),
        *(f"accounting added: {line}" for line in sorted(after.accounts - before.accounts)),
    ]


def describe_snapshot(snapshot: Snapshot) -> str:
    """Return the contents of a snapshot in one line."""
    running = sum(job.started for job in snapshot.queue.values())
    held = sum(job.held for job in snapshot.queue.values())
    waiting = len(snapshot.queue) - running - held
    return f"{running} running, {waiting} waiting and {held} held jobs, {format_count(snapshot.total, 'job record')}"


def _find_in_queue(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for job in before.queue.values():
        now = after.queue.get(job.id)
        problem = _compare(job, now) if now else _explain_absence(job, after)
        if problem:
            yield f"job {job.id} ({job.name}) {problem}"


def _compare(job: QueuedJob, now: QueuedJob) -> str:
    if (job.uid, job.partition, job.name) != (now.uid, now.partition, now.name):
        return f"changed from {job.uid}|{job.partition}|{job.name} to {now.uid}|{now.partition}|{now.name}"
    if job.started and not now.started:
        return f"was running and is {now.state.lower()} now ({now.reason})"
    if job.started and job.start != now.start:
        return f"was restarted: it had started at {job.start}, and now at {now.start}"
    if job.held and not now.held:
        return f"was held and is {now.state.lower()} now"
    return ""


def _explain_absence(job: QueuedJob, after: Snapshot) -> str:
    """Return why a job that left the queue is a difference; empty if its record shows that it ran to its own end."""
    record = after.records.get(job.id)
    if record is None:
        return "is neither in the queue nor in the accounting"
    if not record.ended:
        return f"is not in the queue, although its record says {record.state}"
    if job.held and record.state != "CANCELLED":
        return f"was held, but its record says {record.state}"
    if record.state in _SUSPICIOUS_ENDS:
        return f"ended as {record.state} during the upgrade; its log shows whether the upgrade caused it"
    return ""


def _find_in_records(before: Snapshot, after: Snapshot) -> Iterator[str]:
    for record in before.records.values():
        now = after.records.get(record.id)
        if now is None and not record.waiting_elements:
            yield f"the record of job {record.id} is lost"
        elif now and record.ended and record != now:
            was, is_now = f"{record.state}|{record.details}", f"{now.state}|{now.details}"
            yield f"the record of job {record.id} changed from {was} to {is_now}"
    if after.total < before.total:
        yield f"the database had {before.total} job records and has {after.total} now"
