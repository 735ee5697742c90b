"""The fit of the simulator's constants to published runs, and the command that evaluates it.

test_sim_error_table.py checks the size of the errors.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from simulator.__main__ import main
from simulator.fit.rates import RATE_NAMES, fit_rates, step_s
from simulator.fit.run_errors import compare_runs
from simulator.hardware.rates import Rates, load_fitted_rates, rate_bounds
from simulator.rows.measured import DATA, NEW_DATA, MeasuredRun, load_measured_runs


@cache
def runs() -> tuple[MeasuredRun, ...]:
    return tuple(run for run in load_measured_runs() if run.step_s > 0)


def test_constants_in_use_are_fitted() -> None:
    used = asdict(load_fitted_rates())
    assert used != asdict(Rates())
    assert all(rate_bounds(name)[0] <= used[name] <= rate_bounds(name)[1] for name in RATE_NAMES)
    assert {name: used[name] for name in used if name not in RATE_NAMES} == {"step_layer_us": 0.0}, (
        "only profiles measure it"
    )


@pytest.mark.nightly
def test_constants_move_towards_measured_runs() -> None:
    true = replace(Rates(), matmul=0.8, flash_early=0.3)
    synthetic_runs = [replace(run, step_s=step_s(run, true)) for run in runs()[::8]]
    fitted = fit_rates(synthetic_runs)
    # The fit attributes part of a difference that all runs share to the offsets of their sources.
    assert 0.8 < fitted.matmul < 0.9 < Rates().matmul
    assert fitted.flash_early < Rates().flash_early
    before, after = (
        median(abs(comparison.error) for comparison in compare_runs(synthetic_runs, rates))
        for rates in (Rates(), fitted)
    )
    assert after < 0.6 * before


def test_constants_without_runs_keep_their_prior() -> None:
    single = fit_rates(runs()[:1])
    assert single.fp8 == Rates().fp8
    assert single.host_torch_us == Rates().host_torch_us


def test_evaluate_prints_a_table_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(DATA)]) == 0
    printed = capsys.readouterr().out
    head, *lines = printed.partition("\n\n")[0].splitlines()
    assert head.split()[:3] == ["source", "rows", "median"]
    assert {len(line) for line in lines} == {len(head)}
    assert next(line.split()[1] for line in lines if line.startswith("mosaicml")) == "198"
    assert "tau: median" in printed
    assert "|" not in printed


def test_evaluate_prints_markdown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(DATA), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| mosaicml | 198 |" in printed
    assert "tau: median" in printed


@pytest.mark.parametrize("by", ["source", "system"])
def test_cross_validation_needs_two_sources(by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "one.csv"
    table.write_text("\n".join(DATA.read_text().splitlines()[:2]))
    assert main(["evaluate", str(table), "--cross-validate", by]) == 2
    assert capsys.readouterr().err == (
        f"simulator: {by}s: 1 with measured rows; allowed: two or more, one is left out in turn\n"
    )


def test_byte_order_mark_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked = tmp_path / "marked.csv"
    marked.write_text("\n".join(DATA.read_text().splitlines()[:2]), encoding="utf-8-sig")
    assert main(["predict", "--runs", str(marked), "--out", str(tmp_path / "out.csv")]) == 0
    assert capsys.readouterr().err == ""


def test_cross_validation_prints_the_current_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = DATA.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([head, *(row for row in rows if ",megatron," in row or ",misc," in row)]))
    assert main(["evaluate", str(few), "--cross-validate"]) == 0
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "with all 2",
        "without megatron (1 of 2)",
        "without misc (2 of 2)",
    ]


def test_evaluate_takes_several_tables_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(DATA), str(NEW_DATA)]) == 0
    assert {"mosaicml", "torchtitan"} <= {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert main(["evaluate", str(DATA), str(DATA.with_name("collectives.csv"))]) == 2
    assert "files: runs and collectives; allowed: one kind at a time" in capsys.readouterr().err
