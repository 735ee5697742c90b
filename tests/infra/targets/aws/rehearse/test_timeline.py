"""The timeline: events in order, each state once, as text and as a valid picture with waits and the bill."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from infra.targets.aws.rehearse.timeline import Event, ShortenedTime, Timeline, render_text
from infra.targets.aws.rehearse.timeline_picture import render_picture, render_waits, write_timeline
from infra.targets.aws.rehearse.waits import Wait

EVENTS = [Event(0, "up", "runs"), Event(2.5, "gpu-1", "boots <slowly>"), Event(10, "gpu-1", "ready")]

WAITS, BILL = [Wait("gpu-1", "up", 1, 2.5)], [(0.0, 0.0), (2.5, 0.5), (20.0, 3.0)]


def read_picture(text: str) -> dict[str, list[ElementTree.Element]]:
    """Return the elements of a picture by their class, or their tag if they have none."""
    elements: dict[str, list[ElementTree.Element]] = {}
    for element in ElementTree.fromstring(text).iter():  # noqa: S314  # our own text
        elements.setdefault(element.get("class") or element.tag.rpartition("}")[2], []).append(element)
    return elements


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


def test_shortened_time_is_noted_of_delays_and_of_installations() -> None:
    now = [100.0]
    timeline = Timeline(clock=lambda: now[0])
    now[0] = 101
    timeline.shorten(3)
    timeline.record("gpu-1", "runs user data")
    now[0] = 111
    timeline.shorten_set_up("gpu-1", 4)  # It is not ready.
    timeline.record("gpu-1", "ready")
    timeline.shorten_set_up("gpu-1", 4)
    assert timeline.shortened == [ShortenedTime(1, 4), ShortenedTime(1, 11, share=0.4)]


def test_the_picture_has_a_bar_per_state_that_ends_at_the_next_one() -> None:
    picture = read_picture(render_picture(EVENTS, [], BILL, 20))
    assert [element.text for element in picture["title"]][1:] == [
        "boots <slowly>: 2.5 to 10.0 s",
        "ready: 10.0 to 20.0 s",
    ]
    assert len(picture["rect"]) == 3
    assert float(picture["rect"][1].attrib["width"]) == 7.5 / 20 * 900
    assert "arrow" not in picture
    read_picture(render_picture([], [], [(0.0, 0.0)], 0))


def test_the_picture_has_an_arrow_per_wait_from_what_was_awaited_and_the_bill_as_a_line() -> None:
    picture = read_picture(render_picture(EVENTS, WAITS, BILL, 20))
    (arrow,), (wait,), (line,) = picture["arrow"], picture["wait"], picture["bill"]
    up_bar, gpu_bar = picture["rect"][:2]
    assert arrow.attrib["x1"] == arrow.attrib["x2"] == gpu_bar.attrib["x"]
    assert float(up_bar.attrib["y"]) < float(arrow.attrib["y1"]) < float(arrow.attrib["y2"])
    assert wait[0].text == "gpu-1 waits for up, 0.30 USD billed"
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert len(heights) == 3
    assert heights == sorted(heights, reverse=True)
    assert "running bill: 3.00 USD" in [text.text for text in picture["text"]]


def test_all_files_are_written(tmp_path: Path) -> None:
    job = [Event(11, "job 1", "submitted"), Event(12, "gpu-2", "pending"), Event(15, "job 1", "running")]
    write_timeline(tmp_path, [*EVENTS, *job], BILL, 20)
    assert (tmp_path / "timeline.txt").read_text() == render_text([*EVENTS, *job])
    waits = [Wait("job 1", "gpu-2", 12, 15)]
    assert (tmp_path / "waits.txt").read_text() == render_waits(waits, BILL)
    assert render_waits(waits, BILL) == "    12.0 to   15.0 s  job 1 waits for gpu-2, 0.43 USD billed\n"
    assert len(read_picture((tmp_path / "timeline.svg").read_text())["arrow"]) == 1
