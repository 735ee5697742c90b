"""The `evaluate` command: compare predictions with measured rows, by source or system."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator.fit.error_tables import TableRenderer, aligned_table, markdown_table
from simulator.rows.tables import TableError, read_table
from simulator.terminal import program_name

MIN_GROUPS = 2
"""Groups that cross-validation needs: one is left out in turn."""
RUN_COLUMNS = {"seq", "layers", "model", "params_b", "step_time_s", "tokens_per_s_per_gpu"}
"""A file with any of these columns has rows of runs."""
MEASURED_COLUMNS = ("step_time_s", "tokens_per_s_per_gpu", "memory_gb")


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(arguments)
    try:
        rows = _rows(options.files)
    except TableError as error:
        return _fail(str(error))
    if "op" in rows[0]:
        if "time_us" not in rows[0]:
            return _fail(
                _describe_missing("time_us", "a column of measured microseconds", options.files[0], "collectives")
            )
        return (
            _cross_validate_collectives(rows, options.cross_validate)
            if options.cross_validate
            else _evaluate_collectives(rows)
        )
    if RUN_COLUMNS & set(rows[0]):
        if not set(MEASURED_COLUMNS) & set(rows[0]):
            return _fail(
                _describe_missing(
                    MEASURED_COLUMNS[0], f"one of {', '.join(MEASURED_COLUMNS)} at least", options.files[0], "runs"
                )
            )
        left_out = "source" if options.cross_validate is True else options.cross_validate
        return _evaluate_runs(rows, left_out, markdown_table if options.markdown else aligned_table)
    return _fail(
        f"columns: {', '.join(rows[0])}; allowed: those of simulator/data/runs.csv or collectives.csv;"
        " name a file with these"
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program_name("evaluate"),
        description="Compare predictions with the measured rows of CSV files, and show the errors by source or system.",
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="IN.csv", help="columns as in simulator/data/runs.csv or collectives.csv"
    )
    parser.add_argument(
        "--cross-validate",
        nargs="?",
        const=True,
        choices=("source", "system"),
        help="predict each source or system with constants fitted to the others; takes minutes"
        " (default: source for runs, system for collectives)",
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables of runs as Markdown")
    return parser.parse_args(arguments)


def _rows(files: list[Path]) -> list[dict[str, str]]:
    rows = [row for file in files for row in read_table(file)]
    if len({"op" in row for row in rows}) == MIN_GROUPS:
        raise TableError("files: runs and collectives; allowed: one kind at a time; run the command twice")
    return rows


def _evaluate_collectives(rows: list[dict[str, str]]) -> int:
    # Imports here and below: loading the fit takes longer than a usage error should.
    from simulator.fit.collective_errors import collective_error_table, errors_by_system  # noqa: PLC0415

    errors = errors_by_system(rows)
    if not errors["all"].rows:
        return _fail("rows: none of 1 MB or more with a time_us; allowed: one or more; fill in time_us")
    print(collective_error_table(errors))
    return 0


def _cross_validate_collectives(rows: list[dict[str, str]], left_out: str | bool) -> int:
    from simulator.collectives.constants import load_fitted_constants  # noqa: PLC0415
    from simulator.fit.collective_errors import (  # noqa: PLC0415
        GroupKey,
        cross_validate,
        cross_validation_table,
        errors_with_constants,
        group_by,
        group_measured_rows,
    )

    by: GroupKey = "source" if left_out == "source" else "system"
    groups = group_by(collectives := group_measured_rows(rows), by)
    if len(groups) < MIN_GROUPS:
        return _fail(f"{by}s: {len(groups)} with measured times; allowed: two or more, one is left out in turn")
    _progress(f"each {by} predicted with constants fitted to the others")
    unseen = cross_validate(collectives, _progress, by)
    seen = {name: errors_with_constants(own, load_fitted_constants()) for name, own in groups.items()}
    print(cross_validation_table(seen, unseen, by))
    return 0


def _evaluate_runs(rows: list[dict[str, str]], left_out: str | None, render: TableRenderer) -> int:
    from simulator.fit import run_errors  # noqa: PLC0415
    from simulator.rows.measured import select_measured_runs  # noqa: PLC0415

    runs = [run for run in select_measured_runs(rows) if run.step_s > 0 or run.memory_gib > 0]
    if not runs:
        return _fail(
            "rows: none with a plausible measured time or memory; allowed: one or more; fill in step_time_s,"
            " or run `predict --runs` to see the error of each row"
        )
    if left_out:
        if len(names := run_errors.list_timed_names(runs, left_out)) < MIN_GROUPS:
            return _fail(f"{left_out}s: {len(names)} with measured rows; allowed: two or more, one is left out in turn")
        _progress(f"each {left_out} predicted with constants fitted to the others")
        by_source, by_system = run_errors.predict_without_own_source, run_errors.predict_without_own_system
        compared = (by_source if left_out == "source" else by_system)(runs, _progress)
    else:
        compared = run_errors.compare_runs(runs)
    print(run_errors.run_error_table(run_errors.errors_by_source(compared), render))
    print(f"\n{len(rows) - len(runs)} of {len(rows)} rows left out: failed, doubted by their source, or impossible\n")
    print(run_errors.ranking_table(run_errors.rank_layouts(compared), render))
    return 0


def _describe_missing(column: str, allowed: str, file: Path, kind: str) -> str:
    predict = f"python -m simulator predict --{kind} {file} --out OUT.csv"
    return f"column {column}: missing; allowed: {allowed}; add it, or predict without measurements: {predict}"


def _progress(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _fail(message: str) -> int:
    print(f"simulator: {message}", file=sys.stderr)
    return 2
