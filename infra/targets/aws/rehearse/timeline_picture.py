"""The timeline of a rehearsal as files: a table, who waited for whom, and a picture of both with the running bill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from infra.targets.aws.rehearse.bill import Point, read_bill
from infra.targets.aws.rehearse.delays import RESOURCES
from infra.targets.aws.rehearse.timeline import PHASE, Event, render_text
from infra.targets.aws.rehearse.waits import Wait, find_waits

_ROW_PX, _WIDTH_PX, _MARGIN_PX, _BILL_PX = 26, 900, 30, 110
_BAR_PX, _WAIT_PX = 20, 9
_LETTER_PX, _SMALL_LETTER_PX = 6.2, 4.8
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac",
            "#ff9da6", "#eeca3b", "#83bcb6", "#d6a5c9", "#88d27a", "#9ecae9", "#ffbf79", "#d8b5a5")  # fmt: skip
_WAIT_COLOUR, _BILL_COLOUR, _COMMAND_COLOUR = "#c00000", "#205020", "#c8c8c8"
_LEGEND_COLUMNS, _LEGEND_PX, _LEGEND_ROW_PX, _LEGEND_LETTERS = 7, 165, 18, 26
_BILLED = "machines, NAT gateways and Lustre at the price table, shortened delays in full"
_ARROW = (
    '<defs><marker id="arrow" markerWidth="7" markerHeight="6" refX="6" refY="3" orient="auto">'
    f'<path d="M0,0 L7,3 L0,6 z" fill="{_WAIT_COLOUR}"/></marker></defs>'
)


def write_timeline(folder: Path, events: Sequence[Event], bill: Sequence[Point], end_s: float) -> None:
    """Write timeline.txt, waits.txt and timeline.svg."""
    waits = find_waits(events)
    (folder / "timeline.txt").write_text(render_text(events))
    (folder / "waits.txt").write_text(render_waits(waits, bill))
    (folder / "timeline.svg").write_text(render_picture(events, waits, bill, end_s))


def render_waits(waits: Sequence[Wait], bill: Sequence[Point]) -> str:
    """Return a line per wait, with what the whole cluster was billed meanwhile."""
    return "".join(f"{wait.begin_s:8.1f} to {wait.end_s:6.1f} s  {_describe(wait, bill)}\n" for wait in waits)


def render_picture(events: Sequence[Event], waits: Sequence[Wait], bill: Sequence[Point], end_s: float) -> str:
    """Return an SVG with one row per subject and the running bill below.

    Each state is a bar from its event to the next one of its subject. A wait is a thin red bar in the row of who
    waited; its arrow comes from what was waited for, at the moment at which that was there.
    """
    subjects = list(dict.fromkeys(event.subject for event in events))
    left = max((len(subject) for subject in subjects), default=10) * _LETTER_PX + 12
    frame = _Frame(left, _WIDTH_PX / max(end_s, 1.0), end_s, {name: row for row, name in enumerate(subjects)})
    legend_rows = -(-len(_list_states(events)) // _LEGEND_COLUMNS)
    legend_top = frame.bottom + 2 * _MARGIN_PX + _BILL_PX
    height = legend_top + legend_rows * _LEGEND_ROW_PX
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + _WIDTH_PX + 3 * _MARGIN_PX:.0f}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    )
    background = '<path d="M0,0 H10000 V10000 H0 z" fill="white"/>'
    rows = [part for subject in subjects for part in _draw_row(frame, subject, events)]
    drawn = [part for wait in waits for part in _draw_wait(frame, wait, bill)]
    below = [*_draw_bill(frame, events, bill), *_draw_legend(_list_states(events), legend_top)]
    return "\n".join([head, _ARROW, background, *rows, *drawn, *below, "</svg>\n"])


@dataclass(frozen=True)
class _Frame:
    left: float
    scale: float
    """Pixels per second."""
    end_s: float
    rows: dict[str, int]

    def x(self, at_s: float) -> float:
        return self.left + at_s * self.scale

    def y(self, subject: str) -> int:
        return _MARGIN_PX + self.rows[subject] * _ROW_PX

    @property
    def bottom(self) -> int:
        return _MARGIN_PX + len(self.rows) * _ROW_PX


def _describe(wait: Wait, bill: Sequence[Point]) -> str:
    usd = read_bill(bill, wait.end_s) - read_bill(bill, wait.begin_s)
    return f"{wait.waiter} waits for {wait.awaited}, {usd:.2f} USD billed"


def _draw_row(frame: _Frame, subject: str, events: Sequence[Event]) -> Iterator[str]:
    top, own = frame.y(subject), [event for event in events if event.subject == subject]
    states = _list_states(events)
    yield f'<text x="4" y="{top + 14}">{escape(subject)}</text>'
    for event, end_s in zip(own, [*(event.at_s for event in own[1:]), frame.end_s], strict=True):
        length = max((end_s - event.at_s) * frame.scale, 1)
        title = escape(f"{event.what}: {event.at_s:.1f} to {end_s:.1f} s")
        colour = _colour(states, event.what)
        yield (
            f'<rect x="{frame.x(event.at_s):.1f}" y="{top}" width="{length:.1f}" height="{_BAR_PX}" '
            f'fill="{colour}" fill-opacity="0.7"><title>{title}</title></rect>'
        )
        if len(event.what) * _LETTER_PX + 4 < length:
            yield f'<text x="{frame.x(event.at_s) + 3:.1f}" y="{top + 10}" font-size="10">{escape(event.what)}</text>'


def _draw_wait(frame: _Frame, wait: Wait, bill: Sequence[Point]) -> Iterator[str]:
    top, length = frame.y(wait.waiter) + _BAR_PX - _WAIT_PX, (wait.end_s - wait.begin_s) * frame.scale
    title, end = escape(_describe(wait, bill)), frame.x(wait.end_s)
    yield (
        f'<path class="wait" d="M{frame.x(wait.begin_s):.1f},{top} h{length:.1f} v{_WAIT_PX} h-{length:.1f} z" '
        f'fill="{_WAIT_COLOUR}" fill-opacity="0.3" stroke="{_WAIT_COLOUR}" stroke-width="0.5">'
        f"<title>{title}</title></path>"
    )
    labels = (title.removeprefix(f"{escape(wait.waiter)} "), f"waits for {escape(_shorten(wait.awaited))}")
    if label := next((label for label in labels if len(label) * _SMALL_LETTER_PX < length), ""):
        yield f'<text x="{frame.x(wait.begin_s) + 3:.1f}" y="{top + 8}" font-size="9">{label}</text>'
    is_below = frame.rows[wait.waiter] > frame.rows[wait.awaited]
    begin, finish = frame.y(wait.awaited) + (_BAR_PX if is_below else 0), top if is_below else top + _WAIT_PX
    yield (
        f'<line class="arrow" x1="{end:.1f}" y1="{begin}" x2="{end:.1f}" y2="{finish}" '
        f'stroke="{_WAIT_COLOUR}" stroke-width="0.8" marker-end="url(#arrow)"/>'
    )


def _list_states(events: Sequence[Event]) -> list[str]:
    """Return all states but the commands of the rehearsal, in the order in which they first occur."""
    return list(dict.fromkeys(event.what for event in events if event.subject != PHASE))


def _colour(states: Sequence[str], state: str) -> str:
    return _COLOURS[states.index(state) % len(_COLOURS)] if state in states else _COMMAND_COLOUR


def _draw_legend(states: Sequence[str], top: int) -> Iterator[str]:
    for number, state in enumerate(states):
        x, y = 4 + number % _LEGEND_COLUMNS * _LEGEND_PX, top + number // _LEGEND_COLUMNS * _LEGEND_ROW_PX
        yield f'<circle cx="{x + 5}" cy="{y}" r="5" fill="{_colour(states, state)}" fill-opacity="0.7"/>'
        text = state if len(state) <= _LEGEND_LETTERS else f"{state[: _LEGEND_LETTERS - 3]}..."
        yield f'<text x="{x + 14}" y="{y + 4}" font-size="10">{escape(text)}</text>'


def _shorten(subject: str) -> str:
    """Return a name without the part that tells resources of a kind apart."""
    return next((kind for kind in RESOURCES if subject.startswith(kind)), subject)


def _draw_bill(frame: _Frame, events: Sequence[Event], bill: Sequence[Point]) -> Iterator[str]:
    """Draw the bill as a line, with its amount where each command began, above the seconds."""
    top, bottom, most = frame.bottom + _MARGIN_PX, frame.bottom + _MARGIN_PX + _BILL_PX, max(bill[-1][1], 0.01)

    def y(usd: float) -> float:
        return bottom - usd / most * _BILL_PX

    line = " ".join(f"{frame.x(at_s):.1f},{y(usd):.1f}" for at_s, usd in bill)
    yield f'<text x="4" y="{top + 10}">running bill: {bill[-1][1]:.2f} USD</text>'
    yield f'<text x="{frame.left:.0f}" y="{top - 8}" font-size="10">{_BILLED}</text>'
    yield f'<polyline class="bill" points="{line}" fill="none" stroke="{_BILL_COLOUR}" stroke-width="2"/>'
    for number, event in enumerate(event for event in events if event.subject == PHASE):
        usd, x = read_bill(bill, event.at_s), frame.x(event.at_s)
        yield f'<circle cx="{x:.1f}" cy="{y(usd):.1f}" r="3" fill="{_BILL_COLOUR}"/>'
        text = escape(f"{event.what}: {usd:.2f} USD")
        # Alternately above and below the line, because commands may follow each other closely.
        base, anchor = (y(usd) + 15, "start") if number % 2 else (y(usd) - 5, "end")
        yield f'<text x="{x - 4:.1f}" y="{base:.1f}" font-size="10" text-anchor="{anchor}">{text}</text>'
    for share in range(5):
        at_s = frame.end_s * share / 4
        yield f'<text x="{frame.x(at_s):.1f}" y="{bottom + 15}">{at_s:.0f} s</text>'
