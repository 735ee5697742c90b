"""Many actions in one round trip, run by a real shell: order, data, the step that an error names, live progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap.action import Action, digest, write_file, write_marker
from bootstrap.errors import BootstrapError
from bootstrap.execute import execute_steps
from bootstrap.facts.model import Facts, FileFact
from bootstrap.plan import PlannedStep
from bootstrap.progress import Event
from bootstrap.steps.step import Step
from bootstrap.transport.local import LocalTransport


def planned(name: str, *actions: Action, skipped: str = "") -> PlannedStep:
    return PlannedStep(Step(name, "", lambda *_: []), actions, skipped)


def run(*steps: PlannedStep) -> list[Event]:
    events: list[Event] = []
    execute_steps(LocalTransport(), "n1", steps, events.append)
    return events


def list_states(events: list[Event]) -> list[tuple[str, str]]:
    return [(e.step, e.state) for e in events]


@pytest.mark.fault(20)
def test_files_are_written_completely_and_in_order(tmp_path: Path) -> None:
    blob = bytes(range(256)) * 400
    first, second = f"{tmp_path}/new/first", f"{tmp_path}/second"
    run(planned("a", *write_file(Facts(), first, blob), *write_file(Facts(), second, "text\n", 0o600)))
    assert Path(first).read_bytes() == blob
    assert Path(second).read_text() == "text\n"
    assert Path(second).stat().st_mode & 0o777 == 0o600
    assert Path(first).stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "second"]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o440, 0o755])
def test_a_written_file_matches_its_facts(tmp_path: Path, mode: int) -> None:
    path = f"{tmp_path}/f"
    run(planned("a", *write_file(Facts(), path, "x", mode)))
    assert Path(path).stat().st_mode & 0o777 == mode
    fact = FileFact("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", mode, "root:root")
    assert write_file(Facts(files={path: fact}), path, "x", mode) == []
    assert write_file(Facts(files={path: fact}), path, "y", mode) != []


def test_an_action_without_data_does_not_consume_data_of_the_next(tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    run(planned("a", Action("greedy", "cat >/dev/null"), *write_file(Facts(), path, "mine")))
    assert Path(path).read_text() == "mine"


@pytest.mark.fault(19)
def test_the_first_error_stops_execution_and_names_step_action_and_line(tmp_path: Path) -> None:
    events: list[Event] = []
    steps = [
        planned("good", Action("fine", "true")),
        planned(
            "bad",
            Action("break it", "echo out; echo the reason >&2; false; echo not here >&2", log="/l", fix="repair it"),
        ),
        planned("never", Action("touch", f"touch {tmp_path}/touched")),
    ]
    with pytest.raises(BootstrapError) as caught:
        execute_steps(LocalTransport(), "n1", steps, events.append)
    assert str(caught.value) == "node n1, step bad: break it: the reason. Log: /l. Fix: repair it."
    assert not (tmp_path / "touched").exists()
    assert list_states(events) == [("good", "start"), ("good", "changed"), ("bad", "start"), ("bad", "failed")]


def test_steps_without_actions_are_reported_too() -> None:
    events = run(planned("a"), planned("b", skipped="a reason"), planned("c", Action("do", "true")))
    assert list_states(events) == [("a", "ok"), ("b", "skipped"), ("c", "start"), ("c", "changed")]
    assert events[1].detail == "a reason"


def test_a_slow_action_shows_each_line_it_prints() -> None:
    slow = Action("long work", "echo one; echo two", slow=True)
    events = run(planned("a", Action("quick", "true")), planned("b", slow))
    assert [(e.step, e.detail) for e in events if e.state == "start"] == [
        ("a", "quick"),
        ("b", "long work"),
        ("b", "one"),
        ("b", "two"),
    ]


@pytest.mark.fault(19)
def test_an_action_that_hangs_fails_with_its_title() -> None:
    with pytest.raises(
        BootstrapError, match=r"node n1, step a: no answer within 3 s.*the action that was running: hang"
    ):
        # The script must have begun: on a busy machine, that takes a while.
        run(planned("a", Action("hang", "sleep 600", timeout=3)))


def test_digests_depend_on_the_boundaries_of_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert write_marker("unit", "abc").endswith("echo abc > /var/lib/muster/unit")
