"""The hidden share of communication, and rounds in which there is none to measure."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.overlap_figures import find_hidden_percent, list_overlap

ROUND = {"compute": 3.0, "forward": 1.0, "communication": 1.0, "torch": 4.0, "muster": 3.25}
PROCESSOR = {"compute": 2.9, "forward": 1.0, "communication": 0.2, "torch": 3.2, "muster": 3.15}
NOTHING_TO_HIDE_BEHIND = {**ROUND, "forward": 2.9}


def measured(*rounds: dict[str, float]) -> dict[str, Any]:
    calls = [("all_reduce", [250_000])]
    return {"seconds": rounds, "processor_seconds": [PROCESSOR] * len(rounds), "calls": calls, "samples": 16}


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


def test_rounds_with_nothing_to_hide_behind_have_no_share() -> None:
    figures = list_overlap("ddp", measured(ROUND, ROUND, NOTHING_TO_HIDE_BEHIND))
    share = next(figure for figure in figures if figure.name == "ddp, muster: not hidden of what could be")
    assert share.value == 25
    assert share.reference.endswith("2 rounds of 3")
    with pytest.raises(SystemExit, match=r"too little to compute .* \(2000 of 1000 ms, 100 of 1000 ms\)"):
        list_overlap("ddp", measured(ROUND, NOTHING_TO_HIDE_BEHIND))
