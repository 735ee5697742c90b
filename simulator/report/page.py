"""The comparison as one HTML page that works offline: what to change first, then charts, then every figure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from typing import Any

from simulator.report.compare import Both, Comparison, Row
from simulator.report.figures import NAMES
from simulator.report.measured import PARTS
from trainer.report.picture import Picture

CHANGES_PER_RUN = 3


def render_page(comparison: Comparison, pictures: Sequence[Picture]) -> str:
    """Return the page as HTML."""
    style = resources.files("trainer.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = (_head(comparison), _tiles(comparison), _findings(comparison), _figures(pictures))
    body = "\n".join(part for part in (*parts, _runs(comparison), _splits(comparison), _others(comparison)) if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_safe(_title(comparison))}: predicted and measured</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _title(comparison: Comparison) -> str:
    return ", ".join(dict.fromkeys(row.name for row in comparison.rows))


def _head(comparison: Comparison) -> str:
    count, within = len(comparison.rows), sum(row.within for row in comparison.rows)
    badge = ("good", "as predicted") if within == count else ("note", f"{within} of {count} as predicted")
    ranks = ", ".join(str(number) for number in sorted({row.run.ranks for row in comparison.rows}))
    facts = f"{count} run{'s' * (count > 1)} on {ranks} rank{'s' * (ranks != '1')} · {comparison.machines}"
    return f"""<header>
<h1>{_safe(_title(comparison))} <span class="badge {badge[0]}">{badge[1]}</span></h1>
<p class="facts">Predicted and measured · {_safe(facts)}</p>
</header>"""


def _tiles(comparison: Comparison) -> str:
    row = comparison.largest
    on = f"{row.run.ranks} rank{'s' * (row.run.ranks > 1)}"
    tiles = [
        ("prediction error", f"{comparison.median_error:.1%}", "step time, median of the runs"),
        (f"step on {on}", _time(row.run.step_s), f"predicted {_time(row.predicted.step_s)}"),
        *_tile("scaling efficiency", row.efficiency if comparison.scales else None, on),
        *_tile("exposed communication", row.communication, on),
        *_tile("MFU", row.mfu, on),
    ]
    cells = "\n".join(
        f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)} <small>{_safe(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">\n{cells}\n</dl>'


def _tile(name: str, both: Both | None, on: str) -> list[tuple[str, str, str]]:
    return [(name, f"{both.measured:.1%}", f"on {on}, predicted {both.predicted:.1%}")] if both else []


def _findings(comparison: Comparison) -> str:
    rows = [("note", note) for note in comparison.notes]
    row = comparison.largest
    if row.changes:
        rows.insert(0, ("note", f"Change first, on {row.run.ranks} ranks: {row.changes[0].text}"))
    else:
        rows.insert(0, ("good", f"No change on {row.run.ranks} ranks would save 2 % of the time."))
    items = "\n".join(f'<li class="{level}">{_safe(text)}</li>' for level, text in rows)
    return f'<ul class="findings">\n{items}\n</ul>'


def _figures(pictures: Sequence[Picture]) -> str:
    cells = "\n".join(
        f'<figure id="{picture.name}">\n<h2>{_safe(picture.title)}</h2>\n'
        f'<div role="img" aria-label="{_safe(picture.title)}: {_safe(picture.caption)}">{picture.svg}</div>\n'
        f"<figcaption>{_safe(picture.caption)}</figcaption>\n</figure>"
        for picture in pictures
    )
    return f'<section class="figures">\n{cells}\n</section>' if cells else ""


def _runs(comparison: Comparison) -> str:
    heads = ["run", "ranks", "step measured", "predicted", "80 % interval", "off", "efficiency", "speed-up",
             "exposed communication", "MFU"]  # fmt: skip
    return _folded("Runs: measured (predicted)", _table(heads, [_run(row) for row in comparison.rows]))


def _run(row: Row) -> list[str]:
    run, predicted = row.run, row.predicted
    interval = f"{_time(predicted.low_s)} to {_time(predicted.high_s)}"
    speed = f"{row.speed_up.measured:.2f} ({row.speed_up.predicted:.2f})"
    return [
        row.name if run.finished else f"{row.name}, step {run.reached:,} of {run.config.steps:,}",
        f"{run.ranks} on {run.nodes} node{'s' * (run.nodes > 1)}",
        *(_time(run.step_s), _time(predicted.step_s), interval, f"{row.error:+.1%}"),
        *(_percent(row.efficiency), speed, _percent(row.communication), _percent(row.mfu)),
    ]


def _splits(comparison: Comparison) -> str:
    heads = ["run", "ranks", *(NAMES.get(part, part) for part in PARTS)]
    rows = []
    for row in comparison.rows:
        both = [(row.run.split.get(part), row.predicted.split[part]) for part in PARTS]
        cells = [
            f"{'not measured' if measured is None else _time(measured)} ({_time(predicted)})"
            for measured, predicted in both
        ]
        rows.append([row.name, str(row.run.ranks), *cells])
    return _folded("Seconds of a step: measured (predicted)", _table(heads, rows))


def _others(comparison: Comparison) -> str:
    rows = [
        [row.name, str(row.run.ranks), f"{change.saves:.0%}", change.text]
        for row in comparison.rows
        for change in row.changes[:CHANGES_PER_RUN]
    ]
    return _folded("What to change, run by run", _table(["run", "ranks", "saves", ""], rows)) if rows else ""


def _folded(title: str, content: str) -> str:
    return f"<details open>\n<summary>{_safe(title)}</summary>\n{content}\n</details>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _percent(both: Both | None) -> str:
    return f"{both.measured:.1%} ({both.predicted:.1%})" if both else "not measured"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.1f} ms"


def _safe(text: Any) -> str:
    return html.escape(str(text))
