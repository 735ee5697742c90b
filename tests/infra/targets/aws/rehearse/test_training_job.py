"""The training job of a rehearsal: its events, and what must hold when a machine is taken back."""

from __future__ import annotations

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse.instances import SPOT_NOTICE_S
from infra.targets.aws.rehearse.training_job import check_save, parse_events, select_event

NOTICED_AT = 1000.0
EVENTS = parse_events(
    '{"time": 990.0, "event": "first_step", "step": 1}\n'
    '{"time": 1007.5, "event": "ended", "outcome": "requeue", "step": 31}\n'
    '{"time": 1200.0, "event": "loaded", "step": 31}\n'
    '{"time": 1300.0, "event": "ended", "outcome": "stop'
)


def test_a_line_that_is_still_being_written_is_no_event() -> None:
    assert [event["event"] for event in EVENTS] == ["first_step", "ended", "loaded"]
    assert parse_events("") == []


def test_events_of_a_kind_are_counted_from_one() -> None:
    ended = select_event(EVENTS, "ended", 1)
    assert ended is not None
    assert ended["step"] == 31
    assert select_event(EVENTS, "ended", 2) is None


def test_a_save_within_the_notice_that_is_continued_is_accepted() -> None:
    _, saved, loaded = EVENTS
    check_save(saved, loaded, NOTICED_AT, SPOT_NOTICE_S)


def test_a_late_save_is_an_error() -> None:
    _, saved, loaded = EVENTS
    with pytest.raises(Stop, match="saved only 8 s after the notice; allowed: 5 s"):
        check_save(saved, loaded, NOTICED_AT, notice_s=5)


def test_a_run_that_begins_again_is_an_error() -> None:
    _, saved, loaded = EVENTS
    with pytest.raises(Stop, match="saved step 31 but continued at step 0"):
        check_save(saved, loaded | {"step": 0}, NOTICED_AT, SPOT_NOTICE_S)
