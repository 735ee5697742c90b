"""What a restore must not lose."""

from __future__ import annotations

from dataclasses import replace

from slurm.control.snapshot import JobRecord, QueuedJob, Snapshot
from slurm.restore_check import find_losses

WAITING = QueuedJob("3", "2000", "gpu", "PENDING", "N/A", "JobHeldUser", "waits")
RUNNING = QueuedJob("4", "2000", "gpu", "RUNNING", "2026-11-17T18:00:00", "None", "runs")
RECORDS = {id_: JobRecord(id_, "COMPLETED", "2000") for id_ in ("1", "2", "3", "4")}
BEFORE = Snapshot({"3": WAITING, "4": RUNNING}, RECORDS, frozenset({"demo|physics||normal"}), 4)


def test_jobs_that_run_again_or_have_ended_are_not_lost() -> None:
    requeued = replace(BEFORE, queue={"3": WAITING, "4": replace(RUNNING, state="PENDING", start="N/A")}, total=5)
    ended = replace(BEFORE, queue={})
    assert (find_losses(BEFORE, requeued), find_losses(BEFORE, ended)) == ([], [])


def test_everything_that_is_missing_is_named() -> None:
    assert find_losses(BEFORE, Snapshot({}, {"1": RECORDS["1"]}, frozenset(), 1)) == [
        "job 3 (waits) is missing",
        "job 4 (runs) is missing",
        "the record of job 2 is missing",
        "the record of job 3 is missing",
        "the record of job 4 is missing",
        "accounting lacks: demo|physics||normal",
        "the database had 4 job records and has 1 now",
    ]


def test_waiting_elements_of_an_array_may_get_another_record() -> None:
    array = {"9_[1-3]": JobRecord("9_[1-3]", "PENDING", "2000")}
    before, after = replace(BEFORE, records=RECORDS | array), replace(BEFORE, records=dict(RECORDS))
    assert find_losses(before, after) == []
