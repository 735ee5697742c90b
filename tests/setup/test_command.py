"""`python3 -m setup` as a user runs it."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from setup.paths import Paths

REPO = Path(__file__).resolve().parents[2]


def setup(*arguments: str, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MUSTER_CACHE": str(cache), **variables}
    command = [sys.executable, "-m", "setup", *arguments]
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    """Return a copy of the machine's warm cache, so that these runs do not overwrite its records."""
    real = Paths.from_environment().cache
    if (real / "pulumi").exists():
        (tmp_path / "pulumi").symlink_to(real / "pulumi")
    shutil.copy(real / "env.json", tmp_path / "env.json")
    checked = setup("--check", cache=tmp_path).stdout
    assert checked.endswith("to do: nothing\n"), f"run `make setup` first ({checked.strip()})"
    return tmp_path


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_an_old_python_can_parse_the_entry_point(name: str) -> None:
    ast.parse((REPO / "setup" / name).read_text(), feature_version=(3, 6))


def test_an_old_python_gets_one_clear_message(tmp_path: Path) -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 8, 10); runpy.run_module('setup', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "setup: Python 3.8 is too old; muster needs 3.11 or newer."
    assert "Traceback" not in done.stderr


def test_an_unknown_phase_is_rejected_with_the_allowed_ones(tmp_path: Path) -> None:
    done = setup("imgae", cache=tmp_path)
    assert done.returncode == 2
    allowed = (
        "preflight, apt, venv, pulumi, docker, kernel, image, env, slurm, "
        "browser, fault-tools, kubernetes, trainer-image, virtual-machines, stop-docker"
    )
    assert f"PHASE 'imgae' is not one of: {allowed}" in done.stderr


def test_stop_docker_without_a_started_engine_does_nothing(tmp_path: Path) -> None:
    assert "nothing to stop" in setup("stop-docker", cache=tmp_path).stdout
    assert setup("stop-docker", "--if-started-by-last-run", cache=tmp_path).stdout == ""


@pytest.mark.engine
def test_a_second_run_does_nothing_in_a_short_time(warm: Path) -> None:
    """Measure processor time, as wall time depends on the load of the machine; a shared core may need twice as much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = setup(cache=warm)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("setup: everything is up to date")
    assert seconds < 4
    record = json.loads((warm / "logs" / "setup.json").read_text())
    states = {name: phase["state"] for name, phase in record["phases"].items()}
    assert states == {
        "preflight": "done",
        **dict.fromkeys(("apt", "venv", "pulumi", "docker", "kernel", "image", "env", "slurm"), "cached"),
    }


@pytest.mark.engine
def test_check_changes_nothing(warm: Path) -> None:
    done = setup("--check", cache=warm)
    assert (done.returncode, done.stdout) == (0, "preflight: this machine can run muster; to do: nothing\n")
    assert not (warm / "logs" / "setup.json").exists()


@pytest.mark.engine
def test_a_lost_stamp_does_not_rebuild_the_environment(warm: Path) -> None:
    (warm / "env.json").write_text("{")
    done = setup("env", cache=warm)
    assert done.returncode == 0, done.stderr
    assert [line.split()[::2] for line in done.stdout.splitlines() if line.startswith("env  ")][-1] == ["env", "done"]
    assert "training-env: reused" in (warm / "logs" / "env.log").read_text()
    assert setup("env", cache=warm).stdout.startswith("setup: everything is up to date")


def test_an_unreachable_engine_is_reported_before_anything_starts(tmp_path: Path) -> None:
    done = setup("docker", cache=tmp_path, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1
    assert done.stderr.startswith("setup: this machine is not ready; nothing was started.\n  1. ")
    assert "    fix: " in done.stderr
    assert json.loads((tmp_path / "logs" / "setup.json").read_text())["phases"]["preflight"]["state"] == "failed"
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


FAILING = """
import sys
from setup import command
from setup.registry import Phase
from setup.run import run
from tests.setup.machine import READY

def fail(paths, facts, log):
    run(["sh", "-c", "until [ -s $0 ]; do sleep 0.01; done; echo no space left; exit 3", paths.logs / "venv.log"], log)

def work(paths, facts, log):
    run(["sleep", "300"], log)

phases = {"venv": work, "pulumi": fail, "env": work}
command.PHASES = [Phase(name, lambda *_: False, phases[name]) for name in phases]
command.gather = lambda *_, **__: READY
sys.exit(command.main([]))
"""


def test_a_failed_phase_stops_the_others_and_shows_the_end_of_its_log(tmp_path: Path) -> None:
    environment = {**os.environ, "MUSTER_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FAILING], cwd=REPO, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "setup: phase pulumi failed: `sh -c until [ -s $0 ]; do sleep 0.01; done; echo no space left; exit 3` "
        "failed with exit code 3",
        f"  the last lines of {tmp_path}/logs/pulumi.log:",
        f"    | $ sh -c until [ -s $0 ]; do sleep 0.01; done; echo no space left; exit 3 {tmp_path}/logs/venv.log",
        "    | no space left",
        "  stopped because of it: venv",
        "  fix the cause and run setup again: finished phases are not repeated",
    ]
    phases = json.loads((tmp_path / "logs" / "setup.json").read_text())["phases"]
    assert {name: phase["state"] for name, phase in phases.items()} == {
        "preflight": "done",
        "venv": "stopped",
        "pulumi": "failed",
    }


@pytest.mark.engine
def test_a_concurrent_setup_reports_that_it_waits(warm: Path) -> None:
    environment = {**os.environ, "MUSTER_CACHE": str(warm)}
    with (warm / "setup.lock").open("w") as held:
        held.write("4711")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-m", "setup"], cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert second.stdout is not None
        line = second.stdout.readline()
        assert line == "setup: another setup (process 4711) is running; waiting for it to finish (0 s)\n"
        assert second.poll() is None
    output, _ = second.communicate(timeout=240)
    assert output.startswith("setup: everything is up to date")
    assert second.returncode == 0


def test_setup_imports_only_the_standard_library() -> None:
    """Setup runs before any package is installed."""
    modules = set()
    for path in (REPO / "setup").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").partition(".")[0])
    assert modules - sys.stdlib_module_names == {"setup"}
