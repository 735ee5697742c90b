"""The parts of the night: every test is in exactly one, the workflow runs all of them, and each has time enough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import run
from tests.nightly_parts import LONGEST_MIN, PARTS, VARIABLE, find_part, read_part
from tests.run import FOLDERS, LAYERS, ORDER, REPO, pytest_options
from tests.seeds import SEEDS, list_seeds
from tests.seeds import VARIABLE as SEEDS_VARIABLE

WORKFLOW = yaml.safe_load((REPO / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]["part"]
# Set-up installs packages, builds two images and fills caches; a busy machine takes longer than it did here.
SLACK = 1.5
SET_UP_MIN = 20


# Collects once, in a process of its own, and prints which parts would select each test.
COLLECT = """
import json, sys, pytest
from tests.nightly_parts import PARTS, select_part

class Recorder:
    def pytest_collection_finish(self, session):
        chosen = {item.nodeid: [] for item in session.items}
        for part in PARTS:
            for item in select_part(session.items, part)[0]:
                chosen[item.nodeid].append(part)
        print("COLLECTED", json.dumps(chosen))

sys.exit(pytest.main(sys.argv[1:], plugins=[Recorder()]))
"""


def test_every_cluster_test_is_in_exactly_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real tests of the layer that is divided, as the runner collects them."""
    monkeypatch.delenv(VARIABLE, raising=False)
    options = [*pytest_options("e2e", nightly=True), "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-c", COLLECT, *options, *FOLDERS["e2e"]]
    done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("COLLECTED ")]
    parts: dict[str, list[str]] = json.loads(line.removeprefix("COLLECTED "))
    assert [test for test, chosen in parts.items() if len(chosen) != 1] == []
    # No part of the layer is empty, and no test is in a part that does not run the layer.
    assert {part for (part,) in parts.values()} == {name for name, part in PARTS.items() if "e2e" in part.layers}


def test_the_variable_selects_the_tests_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With files of two parts that import little."""
    monkeypatch.setenv(VARIABLE, "engine")
    files = ["tests/cluster/test_plural.py", "tests/engine/test_entry.py"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    assert {test.partition("::")[0] for test in tests} == {"tests/engine/test_entry.py"}


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "e2e"])
def test_every_test_of_the_other_layers_is_in_exactly_one_part(layer: str) -> None:
    """Here the part depends on the file alone, so that its tests need not be collected."""
    files = sorted(path.relative_to(REPO).as_posix() for path in (REPO / "tests").rglob("test_*.py"))
    parts = {find_part(layer, file) for file in files}
    assert parts
    assert parts <= {name for name, part in PARTS.items() if layer in part.layers}


def test_every_layer_is_in_a_part() -> None:
    assert {layer for part in PARTS.values() for layer in part.layers} == set(ORDER)


def test_the_workflow_runs_every_part_with_its_limit() -> None:
    rows = WORKFLOW["strategy"]["matrix"]["include"]
    assert {row["part"]: row["minutes"] for row in rows} == {name: part.limit_min for name, part in PARTS.items()}
    assert len(rows) == len(PARTS)
    assert WORKFLOW["timeout-minutes"] == "${{ matrix.minutes }}"
    (step,) = [step for step in WORKFLOW["steps"] if "make test-nightly" in step.get("run", "")]
    assert step["run"].endswith('make test-nightly ARGS="--part=$PART"')
    # The part with the linters also audits the packages.
    assert step["env"] == {"PART": "${{ matrix.part }}", "AUDIT": "${{ matrix.part == 'checks' && 'required' || '' }}"}
    assert [name for name, part in PARTS.items() if "lint" in part.layers] == ["checks"]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_time_enough(name: str) -> None:
    """A part that was never measured has the longest limit that there is."""
    part = PARTS[name]
    assert part.limit_min <= LONGEST_MIN
    if part.measured_min is None:
        assert part.limit_min == LONGEST_MIN
    else:
        assert part.limit_min >= part.measured_min * SLACK + SET_UP_MIN


def test_orders_run_with_twenty_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEEDS_VARIABLE, PARTS["orders"].variables[SEEDS_VARIABLE])
    assert list_seeds(1) == list(range(1, SEEDS + 1))
    named = [path for path in (REPO / "tests").rglob("*.py") if "check_orders(orders" in path.read_text()]
    tests = [path.relative_to(REPO).as_posix() for path in named if path.name.startswith("test_")]
    here = Path(__file__).relative_to(REPO).as_posix()
    assert {find_part("pure", path) for path in tests if path != here} == {"orders"}


def test_an_unknown_part_is_refused_with_the_list_of_parts() -> None:
    with pytest.raises(SystemExit, match="--part: unknown 'others'; the parts are checks, trainer"):
        run.main(["--part=others"])
    with pytest.raises(ValueError, match="MUSTER_TEST_PART: 'others' is not a part; allowed: checks, trainer"):
        read_part({VARIABLE: "others"})


def test_a_part_runs_its_layers_by_night(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv(SEEDS_VARIABLE, "")
    monkeypatch.setattr(run.Runner, "run", lambda runner, names: seen.append((runner.nightly, names)))
    assert run.main(["--part=orders"]) == 0
    assert seen == [(True, ("e2e", "pure"))]
    assert read_part() == "orders"
