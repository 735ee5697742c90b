"""The `report` command: compare runs of the trainer with their predictions."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from simulator import terminal
from simulator.commands import outputs
from simulator.commands.console import print_problems, show_progress
from simulator.report.compare import Comparison, as_json, compare
from simulator.report.figures import draw_charts
from simulator.report.machines import CatalogMachines, ProfiledMachines
from simulator.report.measured import read_run
from simulator.report.page import render_page
from trainer.config.errors import ConfigError
from trainer.table import table


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(arguments)
    out = options.out or options.runs[-1] / "predicted"
    try:
        machines = ProfiledMachines(options.profile) if options.profile else CatalogMachines(options.instance)
        with show_progress("reading runs") as progress:
            comparison = compare([read_run(folder) for folder in dict.fromkeys(options.runs)], machines)
            progress("drawing")
            _write(comparison, out)
    except ConfigError as error:
        return print_problems(error)
    except OSError as error:
        return print_problems(outputs.describe_failure(error))
    print(f"{_format(comparison)}\n\n{out / 'index.html'}")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=terminal.program_name("report"),
        description="Compare runs of the trainer with their predictions, on a page with charts.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--profile", type=Path, metavar="FILE", help="predict with rates that `calibrate` measured")
    which.add_argument("--instance", metavar="TYPE", help="predict for this instance type of the catalog")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for the report (default: predicted/ in the last RUN)"
    )
    return parser.parse_args(arguments)


def _write(comparison: Comparison, out: Path) -> None:
    charts = draw_charts(comparison)
    out.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (out / f"{chart.name}.png").write_bytes(chart.png)
    (out / "report.json").write_text(json.dumps(as_json(comparison), indent=2) + "\n", encoding="utf-8")
    (out / "index.html").write_text(render_page(comparison, charts), encoding="utf-8")


def _format(comparison: Comparison) -> str:
    heads = ("run", "ranks", "measured ms", "predicted ms", "off %", "efficiency %", "predicted %")
    rows = [
        (
            row.name,
            row.run.ranks,
            1e3 * row.run.step_s,
            1e3 * row.predicted.step_s,
            100 * row.error,
            100 * row.efficiency.measured,
            100 * row.efficiency.predicted,
        )
        for row in comparison.rows
    ]
    first = [f"change first: {change.text}" for change in comparison.largest.changes[:1]]
    notes = "\n".join([*(f"note: {note}" for note in comparison.notes), *first])
    # In a log each note is one line, so that it can be searched.
    columns = terminal.terminal_width() if sys.stdout.isatty() or "COLUMNS" in os.environ else len(notes) + 1
    return "\n".join(filter(None, [table(heads, rows), terminal.wrap_text(notes, columns)]))
