"""The hidden share of communication, and rounds in which there is none to measure."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.overlap_figures import count_exposed_communication_s, count_samples, find_hidden_percent, list_overlap

ROUND = {"compute": 3.0, "forward": 1.0, "communication": 1.0, "torch": 4.0, "muster": 3.25}
PROCESSOR = {"compute": 2.9, "forward": 1.0, "communication": 0.2, "torch": 3.2, "muster": 3.15}
NOTHING_TO_HIDE_BEHIND = {**ROUND, "forward": 2.9}


IDLE = {"compute": 0.0, "forward": 0.0, "communication": 1.6, "torch": 1.0, "muster": 0.1}


def measured(*rounds: dict[str, float], cores: int = 2) -> dict[str, Any]:
    return {
        "seconds": rounds,
        "processor_seconds": [PROCESSOR] * len(rounds),
        # Further cores have nothing to do.
        "idle_seconds": [{name: IDLE[name] + (cores - 2) * each[name] for name in each} for each in rounds],
        "cores": cores,
        "calls": [("all_reduce", [250_000])],
        "samples": 16,
    }


def test_the_share_is_that_of_what_could_be_hidden() -> None:
    assert find_hidden_percent("ddp", ROUND, "torch") == 0
    assert find_hidden_percent("ddp", ROUND, "muster") == 75
    # Behind the forward pass too.
    assert find_hidden_percent("fsdp", NOTHING_TO_HIDE_BEHIND, "muster") == 75
    figures = {figure.name: figure for figure in list_overlap("ddp", measured(ROUND, ROUND, ROUND))}
    share = figures["ddp, muster: not hidden of what could be"]
    assert (share.value, share.at_most, share.verdict) == (25, 30, "pass")
    assert figures["ddp, torch: not hidden of what could be"].verdict == ""
    assert round(figures["ddp, muster: processor time beyond computing"].value) == 250


def test_what_the_processors_cannot_hide_is_the_work_of_communication_unless_cores_are_idle() -> None:
    # The cores have 0.4 s of work in a second of communication, and none of them is idle while both ranks compute.
    assert count_exposed_communication_s(measured(ROUND, ROUND, ROUND)) == pytest.approx(0.2)
    assert count_exposed_communication_s(measured(ROUND, ROUND, ROUND, cores=4)) == 0
    figures = {figure.name: figure.value for figure in list_overlap("ddp", measured(ROUND, ROUND, ROUND))}
    # 0.75 of the 0.8 s that remain.
    assert figures["ddp, muster: not hidden of what the processors leave to hide"] == pytest.approx(6.25)
    assert figures["ddp, torch: not hidden of what the processors leave to hide"] == pytest.approx(100)


def test_samples_are_added_until_the_backward_pass_is_long_enough() -> None:
    assert count_samples(2, backward=0.1, communication=1.0) == 24
    assert count_samples(24, backward=1.1, communication=1.0) == 27
    assert count_samples(27, backward=1.21, communication=1.0) == 27
    assert count_samples(100, backward=0.5, communication=1.0) == count_samples(128, 0.5, 1.0) == 128


def test_rounds_with_nothing_to_hide_behind_have_no_share() -> None:
    figures = list_overlap("ddp", measured(ROUND, ROUND, NOTHING_TO_HIDE_BEHIND))
    share = next(figure for figure in figures if figure.name == "ddp, muster: not hidden of what could be")
    assert share.value == 25
    assert share.reference.endswith("2 rounds of 3")
    with pytest.raises(SystemExit, match=r"too little to compute .* \(2000 of 1000 ms, 100 of 1000 ms\)"):
        list_overlap("ddp", measured(ROUND, NOTHING_TO_HIDE_BEHIND))
