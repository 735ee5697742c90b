"""The timeline: events in order, each state once, as text and as a valid picture."""

from __future__ import annotations

from xml.etree import ElementTree

from infra.targets.aws.rehearse.timeline import Event, Timeline, render_picture, render_text

EVENTS = [Event(0, "up", "runs"), Event(2.5, "gpu-1", "boots <slowly>"), Event(10, "gpu-1", "ready")]


def test_a_repeated_state_is_recorded_once() -> None:
    now = [100.0]
    seen: list[Event] = []
    timeline = Timeline(clock=lambda: now[0], say=seen.append)
    for moment, subject, state in ((101, "a", "boots"), (102, "b", "boots"), (103, "a", "boots"), (104, "a", "ready")):
        now[0] = moment
        timeline.record(subject, state)
    assert timeline.events == seen == [Event(1, "a", "boots"), Event(2, "b", "boots"), Event(4, "a", "ready")]


def test_text_has_one_line_per_event() -> None:
    assert render_text(EVENTS).splitlines()[1] == "     2.5 s  gpu-1  boots <slowly>"
    assert render_text([]) == ""


def test_the_picture_has_a_bar_per_state_that_ends_at_the_next_one() -> None:
    root = ElementTree.fromstring(render_picture(EVENTS, 20))  # noqa: S314  # our own text
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert len(bars) == 3
    assert titles[1:] == ["boots <slowly>: 2.5 to 10.0 s", "ready: 10.0 to 20.0 s"]
    assert float(bars[1].attrib["width"]) == 7.5 / 20 * 900
    ElementTree.fromstring(render_picture([], 0))  # noqa: S314  # our own text
