"""Render the report as a single page that works offline, on a phone, and in light and dark mode."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any

from trainer.metrics.progress import format_count, format_duration
from trainer.report.attempts import PHASES, list_attempts
from trainer.report.findings import BAD_OUTCOMES, list_findings
from trainer.report.picture import Picture
from trainer.report.run_folder import Run
from trainer.report.timeline import LINK_NAMES

GOOD_OUTCOMES = ("finished",)
# Steps of which the texts are shown: enough to see the progress of a long run.
_TEXT_STEPS = 8


def render_page(run: Run, summary: dict[str, Any], pictures: Sequence[Picture]) -> str:
    """Return the HTML of the report: the summary first, details in folded sections."""
    style = resources.files("trainer.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(
        part
        for part in (
            _render_head(summary),
            _render_tiles(summary),
            _render_findings(run, summary),
            _render_failures(run),
            _render_pictures(pictures),
            _render_texts(run),
            _render_attempts(run),
            _render_communication(run),
            _render_events(run),
            _render_config(run),
        )
        if part
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_escape(run.name)}: run report</title>
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


def _render_head(summary: dict[str, Any]) -> str:
    name = summary["outcome"]
    colour = "good" if name in GOOD_OUTCOMES else "bad" if name in BAD_OUTCOMES else "note"
    ranks, hosts = summary["ranks"], len(summary["hosts"])
    facts = [
        f"step {summary['step']:,}" + (f" of {summary['steps']:,}" if summary["steps"] else ""),
        *_note_recorded_step(summary),
        f"{ranks} rank{'s' * (ranks != 1)}" + (f" on {hosts} host{'s' * (hosts != 1)}" if hosts else ""),
        *([str(summary["strategy"])] if summary["strategy"] else []),
        format_duration(summary["wall_s"]) + (" h" if summary["wall_s"] >= 3600 else " min"),  # noqa: PLR2004
    ]
    reason = f'<p class="reason">{_escape(summary["reason"])}</p>' if summary["reason"] else ""
    return f"""<header>
<h1>{_escape(summary["name"])} <span class="badge {colour}">{_escape(name.replace("_", " "))}</span></h1>
<p class="facts">{" · ".join(_escape(fact) for fact in facts)}</p>
{reason}
</header>"""


def _note_recorded_step(summary: dict[str, Any]) -> list[str]:
    # Metrics are written every few steps, so a run can end after the last of them.
    last = summary["recorded_step"]
    return [f"metrics up to step {last:,}"] if last != summary["step"] else []


def _render_tiles(summary: dict[str, Any]) -> str:
    split = summary["split"]
    peak, evaluation = summary["peak"], summary["evaluation"]
    achieved = peak.get("achieved")
    tiles = [
        ("loss", _format_number(summary["last_loss"], "{:.4g}"), _format_note("best {:.4g}", summary["best_loss"])),
        (
            "evaluation loss",
            _format_number(evaluation.get("loss"), "{:.4g}"),
            _format_note("best {:.4g}", evaluation.get("best_loss")),
        ),
        ("accuracy", _format_number(evaluation.get("accuracy"), "{:.1%}"), "on held-out samples"),
        (f"{summary['unit']} per second", summary["per_s"] and format_count(summary["per_s"]), ""),
        ("MFU", _format_number(summary["mfu"], "{:.1%}"), _format_note("of {:,.4g} TFLOP/s", peak.get("peak"), 1e-12)),
        ("matmul rate", _format_number(achieved, "{:,.4g}", 1e-12), "TFLOP/s per rank, measured"),
        (
            "step",
            _format_number(summary["step_s"], "{:,.1f} ms", 1000),
            _format_note("{:.0%} compute", split["compute"]),
        ),
        ("exposed communication", _format_number(split["communication"], "{:.0%}"), "of a step"),
        ("waiting for data", _format_number(split["data"], "{:.1%}"), "of a step"),
        ("memory", _format_number(summary["memory_gb"], "{:.2f} GB"), "peak of all ranks"),
        ("GPU busy", _format_number(summary["gpu_utilisation"], "{:.0%}"), "by NVML"),
        ("starts", str(summary["starts"] or "") or None, _format_note("{} checkpoints", summary["saves"])),
    ]
    cells = "\n".join(
        f"<div><dt>{_escape(name)}</dt><dd>{_escape(value)} <small>{_escape(note)}</small></dd></div>"
        for name, value, note in tiles
        if value
    )
    return f'<dl class="tiles">\n{cells}\n</dl>'


def _render_findings(run: Run, summary: dict[str, Any]) -> str:
    factor = (run.config.get("watchdog") or {}).get("straggler")
    findings = list_findings(summary, factor) if factor else list_findings(summary)
    rows = "\n".join(f'<li class="{finding.level}">{_escape(finding.text)}</li>' for finding in findings)
    return f'<ul class="findings">\n{rows}\n</ul>' if rows else ""


def _render_failures(run: Run) -> str:
    """Return the first cause of each attempt that failed, and the traceback of the last."""
    if not run.failures:
        return ""
    heads = ["time, UTC", "rank", "host", "step", "cause", "error", "place", "what to do"]
    rows = [
        [
            _format_time(first.time),
            str(first.rank),
            first.host,
            str(first.step),
            first.cause.label,
            first.error,
            first.place,
            first.fix,
        ]
        for first in run.failures
    ]
    last = run.failures[-1].traceback
    trace = f"<pre>{_escape(last.strip())}</pre>" if last else ""
    return _render_details(
        "Failures: the first cause of each attempt", _render_table(heads, rows) + trace, is_open=True
    )


def _render_pictures(pictures: Sequence[Picture]) -> str:
    cells = "\n".join(
        f'<figure id="{picture.name}">\n<h2>{_escape(picture.title)}</h2>\n'
        f'<div role="img" aria-label="{_escape(picture.title)}: {_escape(picture.caption)}">{picture.svg}</div>\n'
        f"<figcaption>{_escape(picture.caption)}</figcaption>\n</figure>"
        for picture in pictures
    )
    return f'<section class="figures">\n{cells}\n</section>' if cells else ""


def _render_texts(run: Run) -> str:
    """Return how the model continued each prompt, the newest step first, in few enough rows to read."""
    rows = [
        [str(line["step"]), item["prompt"], item["text"]]
        for line in reversed(_thin_out(run.texts, _TEXT_STEPS))
        for item in line["texts"]
    ]
    return (
        _render_details("Text samples", _render_table(["step", "prompt", "continued"], rows), is_open=True)
        if rows
        else ""
    )


def _thin_out(lines: Sequence[Any], count: int) -> list[Any]:
    """Return `count` lines at equal distances, the first and the last among them."""
    if len(lines) <= count:
        return list(lines)
    return [lines[round(index * (len(lines) - 1) / (count - 1))] for index in range(count)]


def _render_attempts(run: Run) -> str:
    attempts = list_attempts(run)
    if not attempts:
        return ""
    heads = ["start", "ranks", "from step", "down", *PHASES.values(), "until next step", "end"]
    rows = []
    for attempt in attempts:
        phases = [_format_number(attempt.phases.get(name), "{:.2f} s") or "" for name in PHASES.values()]
        down = f"{attempt.down:.2f} s" if attempt.number > 1 else ""
        total = f"{attempt.down + attempt.start_up:.2f} s" if attempt.first_step_at is not None else ""
        end = attempt.end.replace("_", " ") or "none recorded"
        rows.append(
            [str(attempt.number), str(attempt.world_size or ""), str(attempt.from_step), down, *phases, total, end]
        )
    return _render_details("Starts by phase", _render_table(heads, rows), is_open=len(attempts) > 1)


def _render_communication(run: Run) -> str:
    if not run.profiles:
        return ""
    last = run.profiles[-1]
    heads = ["collective", "group", "link", "count", "MB", "ms", "exposed ms", "hidden"]
    rows = [
        [
            row["collective"],
            row["group"] or "unknown",
            LINK_NAMES.get(row.get("link"), "unknown"),
            *_format_traffic([row]),
        ]
        for row in last["traffic"]
    ]
    by_link = {link: [row for row in last["traffic"] if row.get("link") == link] for link in LINK_NAMES}
    rows += [["all", "", LINK_NAMES[link], *_format_traffic(each)] for link, each in by_link.items() if each]
    text = (
        f"<p>Step {_escape(last['step'])} on rank 0: {last['communication_ms']:.2f} ms of communication in "
        f"{last['span_ms']:.2f} ms, {last['exposed_ms']:.2f} ms of it not hidden by compute. MB counts whole tensors, "
        f"the larger of input and output; the times of collectives that ran at the same time add up.</p>"
    )
    return _render_details(
        "Communication by collective and group", text + (_render_table(heads, rows) if rows else ""), is_open=bool(rows)
    )


def _format_traffic(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return count, sizes and times of collectives together, and the share of their time that compute hides."""
    count, size, ms, exposed_ms = (sum(row[key] for row in rows) for key in ("count", "mb", "ms", "exposed_ms"))
    hidden = f"{1 - exposed_ms / ms:.0%}" if ms else ""
    return [str(count), f"{size:,.2f}", f"{ms:,.2f}", f"{exposed_ms:,.2f}", hidden]


def _render_events(run: Run) -> str:
    if not run.events:
        return ""
    rows = []
    for event in run.events[-500:]:
        fields = {key: value for key, value in event.items() if key not in ("time", "event", "began")}
        text = ", ".join(f"{key} {_shorten(value)}" for key, value in fields.items() if value not in ("", None, []))
        rows.append([_format_time(event["time"]), str(event.get("event")), text])
    note = f" (the last 500 of {len(run.events):,})" if len(rows) < len(run.events) else ""
    return _render_details(f"Events{note}", _render_table(["time, UTC", "event", ""], rows))


def _render_config(run: Run) -> str:
    return _render_details("Configuration", f"<pre>{_escape(run.config_text.strip())}</pre>") if run.config_text else ""


def _render_details(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}>\n<summary>{_escape(title)}</summary>\n{content}\n</details>"


def _render_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escape(cell)}</th>" for cell in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _format_number(value: float | None, form: str, factor: float = 1.0) -> str | None:
    return None if value is None or not math.isfinite(value) else form.format(value * factor)


def _format_note(form: str, value: float | None, factor: float = 1) -> str:
    return _format_number(value, form, factor) or ""


def _format_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))


def _shorten(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _escape(text: Any) -> str:
    return html.escape(str(text))
