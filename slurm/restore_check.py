"""Compare the queue and the accounting of a backup with those after its restore: nothing may be missing."""

from __future__ import annotations

from slurm.control.snapshot import Snapshot


def find_losses(before: Snapshot, after: Snapshot) -> list[str]:
    """Return a line for each job, record or account of the backup that is missing.

    States are not compared: jobs start again as soon as slurmctld runs.
    """
    jobs = [job for job in before.queue.values() if job.id not in after.queue and job.id not in after.records]
    lost_records = before.records.keys() - after.records.keys()
    # The record of waiting elements of an array gets another id when one of them starts.
    records = [before.records[id_] for id_ in sorted(lost_records) if not before.records[id_].waiting_elements]
    counts = [f"the database had {before.total} job records and has {after.total} now"]
    return [
        *(f"job {job.id} ({job.name}) is missing" for job in jobs),
        *(f"the record of job {record.id} is missing" for record in records),
        *(f"accounting lacks: {line}" for line in sorted(before.accounts - after.accounts)),
        *(counts if after.total < before.total else []),
    ]
