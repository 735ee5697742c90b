"""A snapshot of the queue and the accounting; `slurm.upgrade_check` compares those before and after an upgrade.

Users are shown by number, because the twin of a controller on which an upgrade is drilled does not know their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurm.control.named_jobs import list_named_jobs, split_rows

DAYS = 30
"""Days of job records that are compared one by one; older ones are only counted."""
_QUEUE, _ACCOUNTS, _RECORDS, _TOTAL = "== queue", "== accounts", "== records", "== total"

_COUNT = "select count(*) from slurm_acct_db.\\`${cluster}_job_table\\`"
# The queue comes first: a job that ends in between is then in the records.
TAKE = f"""set -e
export SLURM_TIME_FORMAT=standard
queue=$({list_named_jobs("%i|%U|%P|%T|%S|%r", "-a", "-r")})
associations=$(sacctmgr -nP list assoc format=cluster,account,user,qos | sort)
limits=$(sacctmgr -nP list qos format=name,priority,preempt,gracetime | sort)
users=$(sacctmgr -nP list user format=user,adminlevel | sort)
records=$(sacct -a -X -n -P -S now-{DAYS}days -o JobID,State,UID,Account,Partition,ExitCode,Submit,Start,End,NodeList)
cluster=$(scontrol show config | sed -n 's/^ClusterName *= *//p')
total=$(mariadb -N -e "{_COUNT}")
printf '%s\\n' '{_QUEUE}' "$queue" '{_ACCOUNTS}' "$associations" "$limits" "$users"
printf '%s\\n' '{_RECORDS}' "$records" '{_TOTAL}' "$total"
"""
"""Script for the controller whose output `parse_snapshot` parses."""

COUNT_JOBS = f"""cluster=$(scontrol show config | sed -n 's/^ClusterName *= *//p')
mariadb -N -e "{_COUNT} where job_name not like 'ready-%'"
"""
"""Script for the controller that prints how many jobs the database has, without those of the ready gate."""


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue; each element of an array is a job."""

    id: str
    uid: str
    partition: str
    state: str
    start: str
    """Start time of a running job; an estimate, or N/A, for others."""
    reason: str
    name: str

    @property
    def held(self) -> bool:
        return self.reason.startswith("JobHeld")

    @property
    def started(self) -> bool:
        return self.state in ("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED")


@dataclass(frozen=True)
class JobRecord:
    """A job in the accounting database."""

    id: str
    state: str
    details: str
    """User, account, partition, exit code, times and nodes, as sacct prints them."""

    @property
    def waiting_elements(self) -> bool:
        """Whether it stands for the waiting elements of an array, as in 9_[1-3]: its id changes when one starts."""
        return "[" in self.id

    @property
    def ended(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")


@dataclass(frozen=True)
class Snapshot:
    """The queue and the accounting of a cluster at one time."""

    queue: dict[str, QueuedJob]
    records: dict[str, JobRecord]
    accounts: frozenset[str]
    """Associations, qualities of service and users, one line each."""
    total: int
    """Number of job records in the database."""


def parse_snapshot(text: str) -> Snapshot:
    """Parse the output of TAKE; raise ValueError if it is incomplete."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in split_rows(text):
        if line in (_QUEUE, _ACCOUNTS, _RECORDS, _TOTAL):
            lines = sections[line] = []
        elif line:
            lines.append(line)
    if not sections.get(_TOTAL):
        raise ValueError(f"the snapshot of queue and accounting is incomplete: {text[-200:]!r}")
    return Snapshot(
        queue={job.id: job for job in _parse_queue(sections[_QUEUE])},
        records={record.id: record for record in _parse_records(sections[_RECORDS])},
        accounts=frozenset(sections[_ACCOUNTS]),
        total=int(sections[_TOTAL][0]),
    )


def _parse_queue(lines: list[str]) -> Iterator[QueuedJob]:
    for line in lines:
        # The name comes last because it may contain the separator.
        identifier, uid, partition, state, start, reason, name = line.split("|", 6)
        yield QueuedJob(identifier, uid, partition, state, start, reason, name)


def _parse_records(lines: list[str]) -> Iterator[JobRecord]:
    for line in lines:
        identifier, state, details = line.split("|", 2)
        # A cancelled job is shown as `CANCELLED by 2000`.
        yield JobRecord(identifier, state.partition(" ")[0], details)
