"""The runner of `make test`: every test is in one layer, every layer runs once, and every failure is counted."""

from __future__ import annotations

import threading
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import run
from tests.run import (
    FOLDERS,
    LAYERS,
    NOT_PURE,
    ORDER,
    QUICK,
    REPO,
    SLOWEST_TESTS,
    Layer,
    Runner,
    count_results,
    format_slowest,
    pytest_options,
    slowest_tests,
    summarize,
)

REPORT = '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="1"/></testsuites>'


def test_every_layer_runs_once() -> None:
    assert sorted(ORDER) == sorted(["lint", *LAYERS])


@pytest.mark.parametrize(
    ("markers", "layer"),
    [
        (set(), "pure"),
        ({"engine"}, "engine"),
        ({"e2e"}, "e2e"),
        ({"engine", "e2e"}, "e2e"),
        ({"faults"}, "faults"),
    ],
)
def test_every_marked_test_is_in_one_layer(markers: set[str], layer: str) -> None:
    names = {name: name in markers for name in ("engine", "e2e", "faults")}
    selecting = [name for name, expression in LAYERS.items() if expression and eval(expression, names)]  # noqa: S307  # our own expression, with our own names
    assert selecting == [layer]


@pytest.mark.parametrize("layer", FOLDERS)
def test_no_test_of_a_layer_is_outside_its_folders(layer: str) -> None:
    marked = [path for path in (REPO / "tests").rglob("*.py") if f"pytest.mark.{layer}" in path.read_text()]
    here = Path(__file__).relative_to(REPO).as_posix()
    paths = {path.relative_to(REPO).as_posix() for path in marked} - {here}
    assert paths
    assert {path for path in paths if not path.startswith(FOLDERS[layer])} == set()


@pytest.mark.parametrize("folder", NOT_PURE)
def test_every_test_in_a_folder_that_the_pure_layer_ignores_is_marked(folder: str) -> None:
    name = Path(folder).name
    marker = f'if "/{name}/" in item.path.as_posix():\n            item.add_marker(pytest.mark.{name})'
    assert marker in (REPO / folder / "conftest.py").read_text()
    assert f"--ignore={folder}" in pytest_options("pure", nightly=False)
    assert f"--ignore={folder}" not in pytest_options(name, nightly=False)


def test_pytest_enters_every_folder_with_tests(pytestconfig: pytest.Config) -> None:
    """By default it passes over folders with names such as `build`, without a word."""
    tests = Path(__file__).parent
    folders = {folder for file in tests.rglob("test_*.py") for folder in file.relative_to(tests).parents}
    patterns = pytestconfig.getini("norecursedirs")
    assert [str(folder) for folder in folders if any(fnmatch(folder.name, pattern) for pattern in patterns)] == []


def test_help_is_that_of_the_runner_and_starts_no_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--help"]) == 0
    assert "python -m tests.run --quick " in capsys.readouterr().out


def test_an_unknown_layer_is_refused_with_the_list_of_layers() -> None:
    with pytest.raises(SystemExit, match="unknown 'end'; the layers are lint, e2e, pure, faults, trainer, engine"):
        run.main(["--layers=e2e,end"])


@pytest.mark.parametrize(("nightly", "expected"), [(False, 2), (True, 1)])
def test_layers_run_two_at_a_time_and_by_night_one(
    nightly: bool, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = threading.Semaphore(0)
    most: list[int] = []
    # Layers come in groups of the expected number; more at a time would be seen, and with fewer nothing would go on.
    together = threading.Barrier(expected, timeout=60)

    def hold(_runner: Runner, _name: str) -> None:
        running.release()
        together.wait()
        time.sleep(0.05)
        most.append(running._value)
        together.wait()
        running.acquire()

    monkeypatch.setattr(Runner, "_run_and_print", hold)
    assert len(ORDER) % expected == 0
    Runner((), tmp_path, nightly=nightly).run(ORDER)
    assert max(most) == expected


@pytest.mark.parametrize("layer", LAYERS)
def test_long_drills_run_only_at_night(layer: str) -> None:
    by_day, by_night = (pytest_options(layer, nightly=nightly) for nightly in (False, True))
    assert by_day[by_day.index("-m") + 1].endswith("not nightly")
    assert "not nightly" not in " ".join(by_night)
    # By night, more random examples; the trainer's environment has no hypothesis.
    assert ("--hypothesis-profile=nightly" in by_night) == (layer == "pure")
    assert "--hypothesis-profile=nightly" not in by_day


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ([], ORDER),
        (["--quick"], QUICK),
        (["--nightly"], ORDER),
        (["--nightly", "--layers=faults,e2e"], ("e2e", "faults")),
    ],
)
def test_modes_choose_layers(arguments: list[str], layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []

    def note(runner: Runner, names: tuple[str, ...]) -> None:
        seen.append((runner.options, runner.nightly, names))

    monkeypatch.setattr(Runner, "run", note)
    assert run.main(arguments) == 0
    assert seen == [((), "--nightly" in arguments, layers)]
    assert run.main([*arguments, "-k", "name"]) == 0
    without_lint = tuple(name for name in layers if name != "lint")
    assert seen[1:] == [(("-k", "name"), "--nightly" in arguments, without_lint)]


@pytest.mark.parametrize(
    ("report", "code", "expected"),
    [
        (REPORT, 1, (5, 4)),
        ('<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0"/></testsuites>', 5, (0, 1)),
        ('<testsuite tests="3"/>', 0, (3, 0)),
        ('<testsuite tests="3"/>', 2, (3, 1)),
        ("", 5, (0, 1)),
    ],
)
def test_skipped_and_missing_tests_count_as_failed(report: str, code: int, expected: tuple[int, int]) -> None:
    assert count_results(report, code) == expected


def test_the_slowest_tests_are_listed_longest_first() -> None:
    cases = "".join(f'<testcase classname="tests.test_a" name="test_{n}" time="{n}"/>' for n in range(20))
    slowest = slowest_tests(f"<testsuite>{cases}</testsuite>")
    assert len(slowest) == SLOWEST_TESTS
    assert slowest[0] == (19.0, "tests.test_a::test_19")
    assert format_slowest(Layer("pure", 20, 0, 190, tuple(slowest))).splitlines()[:2] == [
        "slowest tests of pure:",
        "    19.0 s  tests.test_a::test_19",
    ]


def test_the_summary_shows_the_seconds_of_each_layer() -> None:
    text = summarize([Layer("pure", 2, 0, 3.25), Layer("e2e", 0, 1, 60)], 61.4)
    assert text.splitlines()[1:3] == ["pure           2       0       3.2", "e2e            0       1      60.0"]
    assert text.splitlines()[3].split() == ["all", "61.4"]
    assert text.endswith("\n2 passed, 1 failed")


def test_the_summary_says_what_could_not_run() -> None:
    text = summarize([Layer("lint", 5, 0, 3.25, not_run=1), Layer("pure", 2, 0, 60)], 61.4)
    assert text.endswith("\n7 passed, 0 failed, 1 not run")


@pytest.mark.parametrize(("variable", "audited"), [("", False), ("required", True)])
def test_the_tests_ask_the_live_database_only_if_the_audit_is_required(
    variable: str, audited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    audits: list[bool] = []

    def lint_(*, audit: bool) -> tuple[int, int, int]:
        audits.append(audit)
        return 5, 0, 1

    monkeypatch.setenv("MUSTER_AUDIT", variable)
    monkeypatch.setattr(run.lint, "main", lint_)
    layer = run.run_lint()
    assert audits == [audited]
    assert (layer.passed, layer.failed, layer.not_run) == (5, 0, 1)


def test_a_failed_layer_is_shown_in_full_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same small file serves as three layers; the third waits for one of the others."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_example.py").write_text(
        "def test_good():\n    pass\n\ndef test_bad():\n    raise AssertionError('seen')\n"
    )
    monkeypatch.setattr(run, "REPO", tmp_path)
    # The three runs of pytest need no plugins, and importing them takes longer than the tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(run, "LAYERS", dict.fromkeys(("first", "second", "third"), "not engine"))
    runner = Runner(("-p", "no:cacheprovider"), tmp_path)
    runner.run(("first", "second", "third"))
    assert {(layer.name, layer.passed, layer.failed) for layer in runner.done} == {
        (name, 1, 1) for name in ("first", "second", "third")
    }
    printed = capsys.readouterr().out
    assert printed.count("AssertionError: seen") >= 3
    assert printed.count("tests.test_example::test_bad") >= 3
    assert sorted(line.partition(",")[0] for line in printed.splitlines() if line.startswith("== ")) == [
        "== first", "== second", "== third",
    ]  # fmt: skip
