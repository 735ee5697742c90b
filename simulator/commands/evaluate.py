"""`python -m simulator evaluate IN.csv ...`: how far the model is from what was measured, by source or system."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator.fit.error_tables import Table, aligned, markdown
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
        return _runs(rows, left_out, markdown if asked.markdown else aligned)
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
    from simulator.fit.collective_errors import errors_by_system, table  # noqa: PLC0415 only what is asked for is read

    found = errors_by_system(rows)
    if not found["all"].rows:
        return _refused("rows: none of 1 MB or more with a time_us; allowed: one or more; fill time_us in")
    print(table(found))
    return 0


def _collectives_left_out(rows: list[dict[str, str]], word: str | bool) -> int:
    from simulator.collectives.constants import fitted  # noqa: PLC0415
    from simulator.fit.collective_cross_validation import By, errors_of, grouped, left_out, measured, table  # noqa: PLC0415

    by: By = "source" if word == "source" else "system"
    every = grouped(known := measured(rows), by)
    if len(every) < TWO:
        return _refused(f"{by}s: {len(every)} with measured times; allowed: two or more, one is left out in turn")
    _progress(f"each {by} predicted by constants that were fitted to the others")
    unseen = left_out(known, _progress, by)
    print(table({name: errors_of(one, fitted()) for name, one in every.items()}, unseen, by))
    return 0


def _runs(rows: list[dict[str, str]], left_out: str | None, written: Table) -> int:
    from simulator.fit.run_errors import compared, errors_by_source, ranking_lines, rankings, table  # noqa: PLC0415
    from simulator.rows.measured import measured  # noqa: PLC0415

    runs = [run for run in measured(rows) if run.step_s > 0 or run.memory_gib > 0]
    if not runs:
        return _refused(
            "rows: none with a measured time or memory that can be true; allowed: one or more; fill step_time_s in,"
            " or ask `predict --runs` what is wrong with each"
        )
    if left_out:
        from simulator.fit import run_cross_validation  # noqa: PLC0415

        if len(names := run_cross_validation.names(runs, left_out)) < TWO:
            return _refused(
                f"{left_out}s: {len(names)} with measured rows; allowed: two or more, one is left out in turn"
            )
        _progress(f"each {left_out} predicted by constants that were fitted to the others")
        each = {"source": run_cross_validation.without_its_source, "system": run_cross_validation.without_its_system}
        found = each[left_out](runs, _progress)
    else:
        found = compared(runs)
    print(table(errors_by_source(found), written))
    print(f"\n{len(rows) - len(runs)} of {len(rows)} rows left out: failed, doubted by their source, or impossible\n")
    print(ranking_lines(rankings(found), written))
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
