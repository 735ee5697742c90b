"""The comparison as one page that works offline: what to change first, then figures, then every number."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from typing import Any

from simulator.report.compare import Both, Comparison, Row
from simulator.report.figures import NAMES
from simulator.report.measured import PARTS
from trainer.report.picture import Picture

SHOWN = 3
"""Changes of a run."""


def page(found: Comparison, pictures: Sequence[Picture]) -> str:
    style = resources.files("trainer.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = (_head(found), _tiles(found), _findings(found), _figures(pictures))
    body = "\n".join(part for part in (*parts, _runs(found), _splits(found), _others(found)) if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_safe(_title(found))}: predicted and measured</title>
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


def _title(found: Comparison) -> str:
    return ", ".join(dict.fromkeys(row.name for row in found.rows))


def _head(found: Comparison) -> str:
    count, within = len(found.rows), sum(row.within for row in found.rows)
    badge = ("good", "as predicted") if within == count else ("note", f"{within} of {count} as predicted")
    ranks = ", ".join(str(number) for number in sorted({row.run.ranks for row in found.rows}))
    facts = f"{count} run{'s' * (count > 1)} on {ranks} rank{'s' * (ranks != '1')} · {found.machines}"
    return f"""<header>
<h1>{_safe(_title(found))} <span class="badge {badge[0]}">{badge[1]}</span></h1>
<p class="facts">Predicted and measured · {_safe(facts)}</p>
</header>"""


def _tiles(found: Comparison) -> str:
    row = found.largest
    on = f"{row.run.ranks} rank{'s' * (row.run.ranks > 1)}"
    tiles = [
        ("prediction off by", f"{found.off:.1%}", "step time, median of the runs"),
        (f"step on {on}", _time(row.run.step_s), f"predicted {_time(row.predicted.step_s)}"),
        *_tile("scaling efficiency", row.efficiency if found.scales else None, on),
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


def _findings(found: Comparison) -> str:
    rows = [("note", note) for note in found.notes]
    row = found.largest
    if row.changes:
        rows.insert(0, ("note", f"Change first, on {row.run.ranks} ranks: {row.changes[0].text}"))
    else:
        rows.insert(0, ("good", f"Nothing to change on {row.run.ranks} ranks that would save 2 % of the time."))
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


def _runs(found: Comparison) -> str:
    heads = ["run", "ranks", "step measured", "predicted", "80 % interval", "off", "efficiency", "speed-up",
             "exposed communication", "MFU"]  # fmt: skip
    return _folded("Runs: measured (predicted)", _table(heads, [_run(row) for row in found.rows]))


def _run(row: Row) -> list[str]:
    run, said = row.run, row.predicted
    interval = f"{_time(said.low_s)} to {_time(said.high_s)}"
    speed = f"{row.speed_up.measured:.2f} ({row.speed_up.predicted:.2f})"
    return [
        row.name if run.finished else f"{row.name}, step {run.reached:,} of {run.config.steps:,}",
        f"{run.ranks} on {run.nodes} node{'s' * (run.nodes > 1)}",
        *(_time(run.step_s), _time(said.step_s), interval, f"{row.error:+.1%}"),
        *(_percent(row.efficiency), speed, _percent(row.communication), _percent(row.mfu)),
    ]


def _splits(found: Comparison) -> str:
    heads = ["run", "ranks", *(NAMES.get(part, part) for part in PARTS)]
    rows = []
    for row in found.rows:
        both = [(row.run.split.get(part), row.predicted.split[part]) for part in PARTS]
        cells = [f"{'not measured' if took is None else _time(took)} ({_time(said)})" for took, said in both]
        rows.append([row.name, str(row.run.ranks), *cells])
    return _folded("Seconds of a step: measured (predicted)", _table(heads, rows))


def _others(found: Comparison) -> str:
    rows = [
        [row.name, str(row.run.ranks), f"{change.saves:.0%}", change.text]
        for row in found.rows
        for change in row.changes[:SHOWN]
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
