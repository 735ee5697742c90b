"""What the losses of runs say: differences from the reference, the spread of references, and text that is too short."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.loss_figures import OTHER_SEED, REFERENCE, Run, check_text, compare_runs, read_runs, write_runs


def make_run(last: float, held_out: float) -> Run:
    """Return a run of 20 steps whose last two have this mean loss."""
    return Run([*[5.0] * 18, last - 0.1, last + 0.1], held_out, rate=0.25)


RUNS = {
    REFERENCE: make_run(2.0, 1.0),
    OTHER_SEED: make_run(2.1, 0.9),
    "bf16": make_run(2.01, 1.005),
    "fp8 delayed": make_run(1.9, 1.02),
}


def test_ways_are_bound_to_the_reference_in_both_losses() -> None:
    verdicts = {figure.name: figure.verdict for figure in compare_runs("tiny", RUNS)}
    assert verdicts["tiny: held-out loss, bf16"] == "pass"
    assert verdicts["tiny: loss of the last steps, bf16"] == "pass"
    assert verdicts["tiny: held-out loss, fp8 delayed"] == "FAIL"
    assert verdicts["tiny: loss of the last steps, fp8 delayed"] == "FAIL"


def test_a_lower_loss_is_a_difference_too() -> None:
    (figure,) = [
        each for each in compare_runs("tiny", RUNS) if each.name == "tiny: loss of the last steps, fp8 delayed"
    ]
    assert figure.value == pytest.approx(5.0)
    assert figure.reference == "1.9000, -5.00 % of 2.0000"


def test_the_reference_with_another_seed_has_no_bound() -> None:
    spread = {figure.name: figure for figure in compare_runs("tiny", RUNS) if OTHER_SEED in figure.name}
    assert spread[f"tiny: held-out loss, {OTHER_SEED}"].value == pytest.approx(10.0)
    assert {figure.verdict for figure in spread.values()} == {""}


def test_text_that_a_run_would_read_twice_is_refused() -> None:
    check_text(tokens=1000, held_out_share=0.1, tokens_per_step=100, steps=9)
    with pytest.raises(SystemExit, match="enough for 9 steps, not for 10; set --steps 9 or lower"):
        check_text(tokens=1000, held_out_share=0.1, tokens_per_step=100, steps=10)


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    assert read_runs(path) == {}
    write_runs(path, {"tiny": RUNS}, compare_runs("tiny", RUNS))
    assert read_runs(path) == {"tiny": RUNS}
