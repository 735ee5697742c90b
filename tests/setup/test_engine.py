"""Setup recognises the state of the Docker engine, and stops only an engine that it started."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from setup import engine
from setup.facts import Engine
from setup.paths import Paths
from setup.run import Answer, SetupError

DOCKER0 = Path("/sys/class/net/docker0")


def info(**fields: object) -> str:
    return json.dumps({"ServerVersion": "28.0.1", "DockerRootDir": "/data/docker", **fields})


REFUSED = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"


@pytest.mark.parametrize(
    ("answer", "host", "installed", "expected"),
    [
        (Answer(0, info()), "", True, Engine("running", data=Path("/data/docker"))),
        (
            Answer(0, info(SecurityOptions=["name=seccomp,profile=builtin", "name=rootless"])),
            "",
            True,
            Engine("running", rootless=True, data=Path("/data/docker")),
        ),
        (
            Answer(0, info(OperatingSystem="Docker Desktop")),
            "",
            False,
            Engine("running", desktop=True, data=Path("/data/docker")),
        ),
        (Answer(1, json.dumps({"ServerErrors": [REFUSED]}), f"ERROR: {REFUSED}"), "", True, Engine("stopped", REFUSED)),
        (Answer(1, "", f"ERROR: {REFUSED}\nerrors pretty printing info"), "", False, Engine("absent", REFUSED)),
        (Answer(0, json.dumps({"ServerErrors": [REFUSED]})), "", True, Engine("stopped", REFUSED)),
        (Answer(1, "", DENIED), "", True, Engine("denied", DENIED)),
        (Answer(127, err="no docker"), "", False, Engine("absent", "no docker")),
        (Answer(127, err="no docker"), "", True, Engine("stopped", "no docker")),
        (
            Answer(1, "", "dial unix: refused"),
            "unix:///run/other.sock",
            True,
            Engine("unreachable", "DOCKER_HOST=unix:///run/other.sock does not answer (dial unix: refused)"),
        ),
        (Answer(1), "", True, Engine("stopped", "no answer")),
    ],
)
def test_engine_states_are_recognised(answer: Answer, host: str, installed: bool, expected: Engine) -> None:
    assert engine.classify(answer, host=host, installed=installed) == expected


def test_docker_host_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    docker = engine.inspect_engine()
    assert docker.state in ("unreachable", "absent")
    if docker.state == "unreachable":
        assert f"DOCKER_HOST=unix://{tmp_path}/none.sock does not answer" in docker.detail


@pytest.fixture
def docker_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a stub `docker` whose context is on another machine; return the log of its subcommands."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\n[ "$1" = context ] && echo ssh://me@far\nexit 0\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return tmp_path / "calls"


@pytest.mark.parametrize("host", ["tcp://far:2375", "ssh://me@far", "far:2375"])
def test_a_remote_engine_is_not_contacted(docker_log: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert engine.inspect_engine() == Engine("remote", f"DOCKER_HOST={host}")
    assert not docker_log.exists()


def test_a_remote_context_is_recognised(docker_log: Path) -> None:
    assert engine.inspect_engine() == Engine("remote", "the current Docker context names ssh://me@far")
    assert docker_log.read_text() == "context\n"


def test_docker_host_overrides_the_context(docker_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    assert engine.inspect_engine().state != "remote"
    assert docker_log.read_text() == "info\n"


def test_stop_ends_only_the_engine_that_setup_started(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path)
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        ours = engine.launch(paths, ["sleep", "600"], tmp_path / "log")
        _wait_for_file(tmp_path / "dockerd.pid")
        assert os.getsid(ours.pid) == ours.pid
        assert engine.stop(paths) == f"stopped the Docker engine that setup had started (process {ours.pid})"
        assert ours.wait(120) != 0
        assert bystander.poll() is None
        assert engine.stop(paths) == "no Docker engine started by setup is running: nothing to stop"
    finally:
        bystander.kill()
        bystander.wait()


def test_a_pid_reused_by_another_process_is_not_stopped(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "dockerd.pid").write_text(str(bystander.pid))
        assert "nothing to stop" in engine.stop(Paths(tmp_path, tmp_path))
        assert bystander.poll() is None
        assert not (tmp_path / "dockerd.pid").exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_an_engine_that_ends_at_once_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(engine, "TAKEOVER_S", 0.3)
    log = tmp_path / "docker.log"
    process = engine.launch(Paths(tmp_path, tmp_path), ["sh", "-c", "echo storage driver is broken; exit 3"], log)
    with pytest.raises(SetupError) as failure:
        engine.wait_until_running(log, process)
    assert str(failure.value) == (
        f"the Docker engine ended at once with exit code 3\n  the last lines of {log}:\n    | storage driver is broken"
    )


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a temporary folder whose sockets have names of at most 107 characters, as Linux demands."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        yield Path(folder)


@pytest.mark.engine
def test_a_real_engine_is_started_and_stopped(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    host = f"unix://{short_path}/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    paths = Paths(short_path, short_path)
    own = [f"--data-root={short_path}/data", f"--exec-root={short_path}/exec", f"--pidfile={short_path}/own.pid"]
    quiet = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"]
    # The engine gets its own network namespace: without a bridge it would remove docker0 of the machine's engine.
    dockerd = ["unshare", "--net", "dockerd", f"--host={host}", *own, *quiet]
    before = DOCKER0.exists()
    process = engine.launch(paths, dockerd, short_path / "docker.log")
    try:
        engine.wait_until_running(short_path / "docker.log", process)
        assert engine.inspect_engine().data == short_path / "data"
    finally:
        assert "stopped the Docker engine" in engine.stop(paths)
        process.wait(120)
    assert engine.inspect_engine().state == "unreachable"
    assert DOCKER0.exists() == before


def _wait_for_file(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        subprocess.run(["sleep", "0.01"], check=True)
    raise AssertionError(f"{path} was not written")
