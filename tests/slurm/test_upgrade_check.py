"""The comparison of queue and accounting before and after an upgrade: what time explains is no difference."""

from __future__ import annotations

import pytest

from slurm.control.snapshot import parse_snapshot
from slurm.upgrade_check import describe_snapshot, find_differences

RUNNING = "5|2000|gpu|RUNNING|2026-11-16T19:00:00|None|train | me"
WAITING = "6|2000|gpu|PENDING|N/A|Priority|next"
HELD = "7|2000|gpu|PENDING|N/A|JobHeldUser|held"
DEPENDENT = "8|2000|gpu|PENDING|N/A|Dependency|after"
DONE = "4|COMPLETED|2000|muster|gpu|0:0|2026-11-16T18:00:00|2026-11-16T18:00:01|2026-11-16T18:00:02|gpu-1"
OPEN = "5|RUNNING|2000|muster|gpu|0:0|2026-11-16T19:00:00|2026-11-16T19:00:00|Unknown|gpu-1"
QUEUE = [RUNNING, WAITING, HELD, DEPENDENT]
ACCOUNTS = ["demo|muster|alice|normal", "normal|0||00:00:00", "alice|None"]
RECORDS = [DONE, OPEN]


def text(queue: list[str] = QUEUE, records: list[str] = RECORDS, accounts: list[str] = ACCOUNTS, total: int = 9) -> str:
    sections = {"queue": queue, "accounts": accounts, "records": records, "total": [str(total)]}
    return "".join(f"== {name}\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items())


def ended(job: str, state: str) -> str:
    return f"{job}|{state}|2000|muster|gpu|0:0|2026-11-16T19:00:00|2026-11-16T19:00:00|2026-11-16T19:09:00|gpu-1"


def without(line: str) -> list[str]:
    return [other for other in QUEUE if other != line]


def test_an_element_of_a_waiting_array_may_start() -> None:
    waiting = "{}|PENDING|2000|muster|gpu|0:0|2026-11-16T19:00:00|Unknown|Unknown|None assigned"
    elements = [f"9_{number}|2000|gpu|PENDING|N/A|Priority|array" for number in (1, 2)]
    before = text([*QUEUE, *elements], [*RECORDS, waiting.format("9_[1-2]")])
    after = text([*QUEUE, elements[1]], [*RECORDS, waiting.format("9_[2]"), ended("9_1", "COMPLETED")])
    assert find_differences(parse_snapshot(before), parse_snapshot(after)) == []
    lost = text([*QUEUE, elements[1]], [*RECORDS, waiting.format("9_[2]")])
    assert find_differences(parse_snapshot(before), parse_snapshot(lost)) == [
        "job 9_1 (array) is neither in the queue nor in the accounting"
    ]


UNCHANGED: dict[str, str] = {
    "nothing happened": text(),
    "a running job ended": text(without(RUNNING), [DONE, ended("5", "COMPLETED")]),
    "a running job reached its time limit": text(without(RUNNING), [DONE, ended("5", "TIMEOUT")]),
    "a user cancelled a job": text(without(WAITING), [*RECORDS, ended("6", "CANCELLED by 2000")]),
    "a waiting job started": text(
        [RUNNING, WAITING.replace("PENDING|N/A", "RUNNING|2026-11-16T19:05:00"), HELD, DEPENDENT]
    ),
    "a waiting job ran and ended": text(without(DEPENDENT), [*RECORDS, ended("8", "COMPLETED")]),
    "a waiting job waits for another reason": text(
        [RUNNING, WAITING.replace("Priority", "Resources"), HELD, DEPENDENT]
    ),
    "new jobs": text([*QUEUE, "9|2000|gpu|PENDING|N/A|Priority|new"], [*RECORDS, ended("10", "FAILED")], total=12),
}


@pytest.mark.parametrize("after", UNCHANGED.values(), ids=UNCHANGED)
def test_the_passing_of_time_is_no_difference(after: str) -> None:
    assert find_differences(parse_snapshot(text()), parse_snapshot(after)) == []


LOST: dict[str, tuple[str, str]] = {
    "job lost": (text(without(WAITING)), "job 6 (next) is neither in the queue nor in the accounting"),
    "running job requeued": (
        text([RUNNING.replace("RUNNING|2026-11-16T19:00:00|None", "PENDING|N/A|BeginTime"), *QUEUE[1:]]),
        "job 5 (train | me) was running and is pending now (BeginTime)",
    ),
    "running job restarted": (
        text([RUNNING.replace("19:00:00", "19:05:00"), *QUEUE[1:]]),
        "job 5 (train | me) was restarted: it had started at 2026-11-16T19:00:00, and now at 2026-11-16T19:05:00",
    ),
    "running job ended by its node": (
        text(without(RUNNING), [DONE, ended("5", "NODE_FAIL")]),
        "job 5 (train | me) ended as NODE_FAIL during the upgrade; its log shows whether the upgrade caused it",
    ),
    "running job without an end": (
        text(without(RUNNING)),
        "job 5 (train | me) is not in the queue, although its record says RUNNING",
    ),
    "hold lost": (
        text([RUNNING, WAITING, HELD.replace("JobHeldUser", "Priority"), DEPENDENT]),
        "job 7 (held) was held and is pending now",
    ),
    "held job ran": (
        text(without(HELD), [*RECORDS, ended("7", "COMPLETED")]),
        "job 7 (held) was held, but its record says COMPLETED",
    ),
    "owner changed": (
        text([RUNNING.replace("2000", "2001"), *QUEUE[1:]]),
        "job 5 (train | me) changed from 2000|gpu|train | me to 2001|gpu|train | me",
    ),
    "record lost": (text(records=[OPEN]), "the record of job 4 is lost"),
    "record changed": (
        text(records=[DONE.replace("COMPLETED", "FAILED"), OPEN]),
        f"the record of job 4 changed from {DONE[2:]} to {DONE[2:].replace('COMPLETED', 'FAILED')}",
    ),
    "old records lost": (text(total=8), "the database had 9 job records and has 8 now"),
    "user lost": (text(accounts=ACCOUNTS[1:]), "accounting lost: demo|muster|alice|normal"),
    "limit added": (text(accounts=[*ACCOUNTS, "urgent|0||"]), "accounting added: urgent|0||"),
}


@pytest.mark.parametrize(("after", "difference"), LOST.values(), ids=LOST)
def test_every_loss_is_a_difference(after: str, difference: str) -> None:
    assert find_differences(parse_snapshot(text()), parse_snapshot(after)) == [difference]


def test_an_incomplete_snapshot_is_an_error() -> None:
    with pytest.raises(ValueError, match="incomplete"):
        parse_snapshot(text().partition("== records")[0])


def test_the_summary_counts_jobs_by_kind() -> None:
    assert describe_snapshot(parse_snapshot(text())) == "1 running, 2 waiting and 1 held jobs, 9 job records"
