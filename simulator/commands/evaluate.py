"""`python -m simulator evaluate IN.csv ...`: how far the model is from what was measured, by source or system."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator.fit.error_tables import TableRenderer, aligned_table, markdown_table
from simulator.rows.tables import TableError, read_table

TWO = 2
OF_RUNS = {"seq", "layers", "model", "params_b", "step_time_s", "tokens_per_s_per_gpu"}
"""Any of these, and the rows are runs."""
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "memory_gb")


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        rows = _rows(asked.files)
    except TableError as bad:
        return _refused(str(bad))
    if "op" in rows[0]:
        if "time_us" not in rows[0]:
            return _refused(_without("time_us", "a column of measured microseconds", asked.files[0], "collectives"))
        return _collectives_left_out(rows, asked.cross_validate) if asked.cross_validate else _collectives(rows)
    if OF_RUNS & set(rows[0]):
        if not set(MEASURED) & set(rows[0]):
            return _refused(_without(MEASURED[0], f"one of {', '.join(MEASURED)} at least", asked.files[0], "runs"))
        left_out = "source" if asked.cross_validate is True else asked.cross_validate
        return _runs(rows, left_out, markdown_table if asked.markdown else aligned_table)
    return _refused(
        f"columns: {', '.join(rows[0])}; allowed: those of simulator/data/runs.csv or collectives.csv; name such a file"
    )


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator evaluate", description=__doc__)
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="IN.csv", help="columns of simulator/data/runs.csv, collectives.csv"
    )
    parser.add_argument(
        "--cross-validate",
        nargs="?",
        const=True,
        choices=("source", "system"),
        help="predict each by constants fitted to the others of the file: minutes;"
        " without a word the sources of runs, the systems of collectives",
    )
    parser.add_argument("--markdown", action="store_true", help="tables of runs in Markdown")
    return parser.parse_args(words)


def _rows(files: list[Path]) -> list[dict[str, str]]:
    rows = [row for file in files for row in read_table(file)]
    if len({"op" in row for row in rows}) == TWO:
        raise TableError("files: runs and collectives; allowed: one kind at a time; ask twice")
    return rows


def _collectives(rows: list[dict[str, str]]) -> int:
    # Imports here and below: loading the fit takes longer than a usage error should.
    from simulator.fit.collective_errors import collective_error_table, errors_by_system  # noqa: PLC0415

    found = errors_by_system(rows)
    if not found["all"].rows:
        return _refused("rows: none of 1 MB or more with a time_us; allowed: one or more; fill time_us in")
    print(collective_error_table(found))
    return 0


def _collectives_left_out(rows: list[dict[str, str]], word: str | bool) -> int:
    from simulator.collectives.constants import load_fitted_constants  # noqa: PLC0415
    from simulator.fit.collective_errors import (  # noqa: PLC0415
        GroupKey,
        cross_validate,
        cross_validation_table,
        errors_with_constants,
        group_by,
        group_measured_rows,
    )

    by: GroupKey = "source" if word == "source" else "system"
    every = group_by(collectives := group_measured_rows(rows), by)
    if len(every) < TWO:
        return _refused(f"{by}s: {len(every)} with measured times; allowed: two or more, one is left out in turn")
    _progress(f"each {by} predicted by constants that were fitted to the others")
    unseen = cross_validate(collectives, _progress, by)
    seen = {name: errors_with_constants(own, load_fitted_constants()) for name, own in every.items()}
    print(cross_validation_table(seen, unseen, by))
    return 0


def _runs(rows: list[dict[str, str]], left_out: str | None, written: TableRenderer) -> int:
    from simulator.fit import run_errors  # noqa: PLC0415
    from simulator.rows.measured import select_measured_runs  # noqa: PLC0415

    runs = [run for run in select_measured_runs(rows) if run.step_s > 0 or run.memory_gib > 0]
    if not runs:
        return _refused(
            "rows: none with a measured time or memory that can be true; allowed: one or more; fill step_time_s in,"
            " or ask `predict --runs` what is wrong with each"
        )
    if left_out:
        if len(names := run_errors.list_timed_names(runs, left_out)) < TWO:
            return _refused(
                f"{left_out}s: {len(names)} with measured rows; allowed: two or more, one is left out in turn"
            )
        _progress(f"each {left_out} predicted by constants that were fitted to the others")
        by_source, by_system = run_errors.predict_without_own_source, run_errors.predict_without_own_system
        found = (by_source if left_out == "source" else by_system)(runs, _progress)
    else:
        found = run_errors.compare_runs(runs)
    print(run_errors.run_error_table(run_errors.errors_by_source(found), written))
    print(f"\n{len(rows) - len(runs)} of {len(rows)} rows left out: failed, doubted by their source, or impossible\n")
    print(run_errors.ranking_table(run_errors.rank_layouts(found), written))
    return 0


def _without(column: str, allowed: str, file: Path, kind: str) -> str:
    ask = f"python -m simulator predict --{kind} {file} --out OUT.csv"
    return f"column {column}: missing; allowed: {allowed}; add it, or for times without any: {ask}"


def _progress(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _refused(why: str) -> int:
    print(f"simulator: {why}", file=sys.stderr)
    return 2
