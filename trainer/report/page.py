"""The report as one page: works offline, on a phone, by day and by night. Summary first, details folded."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

from trainer.metrics.progress import format_count, format_duration
from trainer.report.findings import findings
from trainer.report.lives import PHASES, lives
from trainer.report.picture import Picture
from trainer.report.run_folder import Run

GOOD = ("finished",)
BAD = ("broken", "hang", "bad_input")


def page(run: Run, summary: dict[str, Any], pictures: Sequence[Picture]) -> str:
    style = resources.files("trainer.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(
        part
        for part in (
            _head(summary),
            _tiles(summary),
            _findings(run, summary),
            _figures(pictures),
            _starts(run),
            _communication(run),
            _events(run),
            _config(run),
        )
        if part
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_safe(run.name)}: run report</title>
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


def _head(summary: dict[str, Any]) -> str:
    name = summary["outcome"]
    colour = "good" if name in GOOD else "bad" if name in BAD else "note"
    ranks, hosts = summary["ranks"], len(summary["hosts"])
    facts = [
        f"step {summary['step']:,}" + (f" of {summary['steps']:,}" if summary["steps"] else ""),
        *_recorded(summary),
        f"{ranks} rank{'s' * (ranks != 1)}" + (f" on {hosts} host{'s' * (hosts != 1)}" if hosts else ""),
        *([str(summary["strategy"])] if summary["strategy"] else []),
        format_duration(summary["wall_s"]) + (" h" if summary["wall_s"] >= 3600 else " min"),  # noqa: PLR2004
    ]
    reason = f'<p class="reason">{_safe(summary["reason"])}</p>' if summary["reason"] else ""
    return f"""<header>
<h1>{_safe(summary["name"])} <span class="badge {colour}">{_safe(name.replace("_", " "))}</span></h1>
<p class="facts">{" · ".join(_safe(fact) for fact in facts)}</p>
{reason}
</header>"""


def _recorded(summary: dict[str, Any]) -> list[str]:
    """Metrics are written every few steps: a run can end after the last of them."""
    last = summary["recorded_step"]
    return [f"metrics up to step {last:,}"] if last != summary["step"] else []


def _tiles(summary: dict[str, Any]) -> str:
    split = summary["split"]
    peak = summary["peak"]
    achieved = peak.get("achieved")
    tiles = [
        ("loss", _number(summary["last_loss"], "{:.4g}"), _note("best {:.4g}", summary["best_loss"])),
        (f"{summary['unit']} per second", summary["per_s"] and format_count(summary["per_s"]), ""),
        ("MFU", _number(summary["mfu"], "{:.1%}"), _note("of {:,.4g} TFLOP/s", peak.get("peak"), 1e-12)),
        ("best matmul here", _number(achieved, "{:,.4g}", 1e-12), "TFLOP/s per rank, measured"),
        ("step", _number(summary["step_s"], "{:,.1f} ms", 1000), _note("{:.0%} compute", split["compute"])),
        ("exposed communication", _number(split["communication"], "{:.0%}"), "of a step"),
        ("waiting for data", _number(split["data"], "{:.1%}"), "of a step"),
        ("memory", _number(summary["memory_gb"], "{:.2f} GB"), "most on a rank"),
        ("GPU busy", _number(summary["gpu_utilisation"], "{:.0%}"), "by NVML"),
        ("starts", str(summary["starts"] or "") or None, _note("{} checkpoints", summary["saves"])),
    ]
    cells = "\n".join(
        f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)} <small>{_safe(note)}</small></dd></div>"
        for name, value, note in tiles
        if value
    )
    return f'<dl class="tiles">\n{cells}\n</dl>'


def _findings(run: Run, summary: dict[str, Any]) -> str:
    factor = (run.config.get("watchdog") or {}).get("straggler")
    found = findings(summary, factor) if factor else findings(summary)
    rows = "\n".join(f'<li class="{finding.level}">{_safe(finding.text)}</li>' for finding in found)
    return f'<ul class="findings">\n{rows}\n</ul>' if rows else ""


def _figures(pictures: Sequence[Picture]) -> str:
    cells = "\n".join(
        f'<figure id="{picture.name}">\n<h2>{_safe(picture.title)}</h2>\n'
        f'<div role="img" aria-label="{_safe(picture.title)}: {_safe(picture.caption)}">{picture.svg}</div>\n'
        f"<figcaption>{_safe(picture.caption)}</figcaption>\n</figure>"
        for picture in pictures
    )
    return f'<section class="figures">\n{cells}\n</section>' if cells else ""


def _starts(run: Run) -> str:
    found = lives(run)
    if not found:
        return ""
    heads = ["start", "ranks", "from step", "down", *PHASES.values(), "until next step", "end"]
    rows = []
    for life in found:
        phases = [_number(life.phases.get(name), "{:.2f} s") or "" for name in PHASES.values()]
        down = f"{life.down:.2f} s" if life.number > 1 else ""
        total = f"{life.down + life.start_up:.2f} s" if life.first_step_at is not None else ""
        end = life.end.replace("_", " ") or "none recorded"
        rows.append([str(life.number), str(life.world_size or ""), str(life.from_step), down, *phases, total, end])
    return _folded("Starts, phase by phase", _table(heads, rows), is_open=len(found) > 1)


def _communication(run: Run) -> str:
    if not run.profiles:
        return ""
    last = run.profiles[-1]
    heads = ["collective", "group", "count", "MB", "ms", "exposed ms"]
    rows = [
        [
            row["collective"],
            row["group"] or "unknown",
            str(row["count"]),
            *(f"{row[k]:,.2f}" for k in ("mb", "ms", "exposed_ms")),
        ]
        for row in last["traffic"]
    ]
    text = (
        f"<p>Step {last['step']} on rank 0: {last['communication_ms']:.2f} ms of communication in "
        f"{last['span_ms']:.2f} ms, {last['exposed_ms']:.2f} ms of it not covered by compute. MB counts whole tensors, "
        f"the larger of what went in and came out; ms of collectives that ran at once add up.</p>"
    )
    return _folded(
        "Communication by collective and group", text + (_table(heads, rows) if rows else ""), is_open=bool(rows)
    )


def _events(run: Run) -> str:
    if not run.events:
        return ""
    rows = []
    for event in run.events[-500:]:
        rest = {key: value for key, value in event.items() if key not in ("time", "event", "began")}
        words = ", ".join(f"{key} {_short(value)}" for key, value in rest.items() if value not in ("", None, []))
        rows.append([time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event["time"])), str(event.get("event")), words])
    note = f" (the last 500 of {len(run.events):,})" if len(rows) < len(run.events) else ""
    return _folded(f"Events{note}", _table(["time, UTC", "event", ""], rows))


def _config(run: Run) -> str:
    return _folded("Configuration", f"<pre>{_safe(run.config_text.strip())}</pre>") if run.config_text else ""


def _folded(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}>\n<summary>{_safe(title)}</summary>\n{content}\n</details>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _number(value: float | None, form: str, factor: float = 1.0) -> str | None:
    return None if value is None or not math.isfinite(value) else form.format(value * factor)


def _note(form: str, value: float | None, factor: float = 1) -> str:
    return _number(value, form, factor) or ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _safe(text: Any) -> str:
    return html.escape(str(text))
