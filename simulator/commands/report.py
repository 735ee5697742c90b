"""`python -m simulator report RUN... --profile FILE | --instance TYPE`: predicted and measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from simulator import terminal
from simulator.commands import outputs
from simulator.commands.progress import progress
from simulator.commands.refused import refused
from simulator.report.compare import Comparison, as_json, compare
from simulator.report.figures import draw_charts
from simulator.report.machines import CatalogMachines, ProfiledMachines
from simulator.report.measured import read_run
from simulator.report.page import render_page
from trainer.config.errors import ConfigError
from trainer.table import table


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        machines = ProfiledMachines(asked.profile) if asked.profile else CatalogMachines(asked.instance)
        progress("reading runs")
        found = compare([read_run(folder) for folder in dict.fromkeys(asked.runs)], machines)
        out = asked.out or asked.runs[-1] / "predicted"
        progress("drawing")
        _write(found, out)
    except ConfigError as bad:
        progress("")
        return refused(bad)
    except OSError as bad:
        progress("")
        return refused(outputs.failed(bad))
    progress("")
    print(f"{_told(found)}\n\n{out / 'index.html'}")
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run of the trainer")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--profile", type=Path, metavar="FILE", help="the machines, as calibrate measured them")
    which.add_argument("--instance", metavar="TYPE", help="the machines, by the catalog")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes; predicted/ in the last RUN")
    return parser.parse_args(words)


def _write(found: Comparison, out: Path) -> None:
    drawn = draw_charts(found)
    out.mkdir(parents=True, exist_ok=True)
    for picture in drawn:
        (out / f"{picture.name}.png").write_bytes(picture.png)
    (out / "report.json").write_text(json.dumps(as_json(found), indent=2) + "\n", encoding="utf-8")
    (out / "index.html").write_text(render_page(found, drawn), encoding="utf-8")


def _told(found: Comparison) -> str:
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
        for row in found.rows
    ]
    first = [f"change first: {one.text}" for one in found.largest.changes[:1]]
    below = "\n".join([*(f"note: {note}" for note in found.notes), *first])
    # Lines of a log are for programs that look for words.
    columns = terminal.terminal_width() if sys.stdout.isatty() or "COLUMNS" in os.environ else len(below) + 1
    return "\n".join(filter(None, [table(heads, rows), terminal.wrap_text(below, columns)]))
