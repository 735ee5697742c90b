"""The runner of `make test`: every test is in one layer, every layer in one lane, and what failed is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import run
from tests.run import FOLDERS, LANES, LAST, LAYERS, REPO, Layer, Runner, counts, summary

REPORT = '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="1"/></testsuites>'


def test_every_layer_is_in_one_lane() -> None:
    assert sorted([*(name for lane in LANES for name in lane), *LAST]) == sorted(LAYERS)


@pytest.mark.parametrize(
    ("markers", "layer"),
    [
        (set(), "pure"),
        ({"engine"}, "engine"),
        ({"e2e"}, "e2e"),
        ({"engine", "e2e"}, "e2e"),
        ({"e2e", "alone"}, "alone"),
        ({"faults"}, "faults"),
    ],
)
def test_every_marked_test_is_in_one_layer(markers: set[str], layer: str) -> None:
    names = {name: name in markers for name in ("engine", "e2e", "faults", "alone")}
    assert [name for name, words in LAYERS.items() if words and eval(words, names)] == [layer]  # noqa: S307


@pytest.mark.parametrize("layer", FOLDERS)
def test_no_test_of_a_layer_is_outside_its_folders(layer: str) -> None:
    marked = [path for path in (REPO / "tests").rglob("*.py") if f"pytest.mark.{layer}" in path.read_text()]
    here = Path(__file__).relative_to(REPO).as_posix()
    found = {path.relative_to(REPO).as_posix() for path in marked} - {here}
    assert found
    assert {path for path in found if not path.startswith(FOLDERS[layer])} == set()


@pytest.mark.parametrize(
    ("report", "code", "expected"),
    [
        (REPORT, 1, (5, 4)),
        ('<testsuite tests="3"/>', 0, (3, 0)),
        ('<testsuite tests="3"/>', 2, (3, 1)),
        ("", 5, (0, 1)),
    ],
)
def test_what_did_not_pass_failed(report: str, code: int, expected: tuple[int, int]) -> None:
    assert counts(report, code) == expected


def test_the_summary_says_how_long_each_took() -> None:
    said = summary([Layer("pure", 2, 0, 3.25), Layer("e2e", 0, 1, 60)], 61.4)
    assert said.splitlines()[1:3] == ["pure           2       0       3.2", "e2e            0       1      60.0"]
    assert said.splitlines()[3].split() == ["all", "61.4"]
    assert said.endswith("\n2 passed, 1 failed")


def test_a_layer_that_fails_is_shown_whole_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two small files stand for the layers; they run side by side with a third in the second's lane."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_made.py").write_text(
        "def test_good():\n    pass\n\ndef test_bad():\n    raise AssertionError('seen')\n"
    )
    monkeypatch.setattr(run, "REPO", tmp_path)
    monkeypatch.setattr(run, "LAYERS", dict.fromkeys(("one", "two", "three"), "not alone"))
    runner = Runner(("-p", "no:cacheprovider"), tmp_path)
    runner.side_by_side(("one", "two"), ("three",))
    assert {(layer.name, layer.passed, layer.failed) for layer in runner.done} == {
        (name, 1, 1) for name in ("one", "two", "three")
    }
    said = capsys.readouterr().out
    assert said.count("AssertionError: seen") >= 3
    assert sorted(line.partition(",")[0] for line in said.splitlines() if line.startswith("== ")) == [
        "== one", "== three", "== two",
    ]  # fmt: skip
