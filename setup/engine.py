"""The Docker engine: which one there is, and starting one where there is none."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from setup.paths import Paths
from setup.run import Answer, Failed, ask, run

if TYPE_CHECKING:
    from setup.facts import Facts

State = Literal["running", "stopped", "absent", "denied", "unreachable", "remote"]
MARKER = "MUSTER_ENGINE"
START_S = 60.0
GRACE_S = 10.0
STOP_S = 60.0


@dataclass(frozen=True)
class Engine:
    state: State
    detail: str = ""
    rootless: bool = False
    desktop: bool = False
    data: Path = Path("/var/lib/docker")


def look() -> Engine:
    host = os.environ.get("DOCKER_HOST", "")
    place = endpoint(host)
    if place and not place.startswith("unix://"):
        return Engine("remote", f"DOCKER_HOST={host}" if host else f"the current Docker context names {place}")
    answer = ask(["docker", "info", "-f", "{{json .}}"])
    return classify(answer, host=host, installed=shutil.which("dockerd") is not None)


def endpoint(host: str) -> str:
    """Where the client looks for the engine: DOCKER_HOST if there is one, else its context; empty when unknown."""
    if host:
        return host
    answer = ask(["docker", "context", "inspect", "-f", "{{.Endpoints.docker.Host}}"])
    return answer.out if answer.code == 0 else ""


def classify(answer: Answer, *, host: str, installed: bool) -> Engine:
    info = _parse(answer.out)
    if answer.code == 0 and info.get("ServerVersion"):
        return Engine(
            "running",
            rootless="name=rootless" in info.get("SecurityOptions", []),
            desktop=info.get("OperatingSystem") == "Docker Desktop",
            data=Path(info.get("DockerRootDir", "/var/lib/docker")),
        )
    detail = " ".join(info.get("ServerErrors", [])) or answer.err or answer.out
    detail = detail.removeprefix("ERROR: ").splitlines()[0] if detail else "no answer"
    if answer.code == 127:  # noqa: PLR2004
        return Engine("stopped" if installed else "absent", detail)
    if "permission denied" in detail:
        return Engine("denied", detail)
    if host:
        return Engine("unreachable", f"DOCKER_HOST={host} does not answer ({detail})")
    return Engine("stopped" if installed else "absent", detail)


def act(paths: Paths, _: "Facts", log: Path) -> None:
    """Start the machine's engine and wait until it answers; installing its package may just have started it."""
    if look().state == "running":
        return
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "docker"], log)
        wait(log, None)
        return
    wait(log, launch(paths, ["dockerd"], log))


def launch(paths: Paths, argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Without an init system: a background process of its own session, known again by its pid file and environment."""
    with log.open("ab") as out:
        return subprocess.Popen(
            # The shell writes its pid before it becomes the engine: no kill leaves an engine that stop() does not know.
            ["/bin/sh", "-c", 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"', str(_pid_file(paths)), *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, MARKER: str(_pid_file(paths))},
        )


def wait(log: Path, process: "subprocess.Popen[bytes] | None") -> None:
    deadline, ended = time.monotonic() + START_S, ""
    while time.monotonic() < deadline:
        if look().state == "running":
            return
        if process is not None and process.poll() is not None:
            # Perhaps because another one is just coming up: that one will do.
            deadline = min(deadline, time.monotonic() + GRACE_S)
            ended, process = f"ended at once with exit code {process.returncode}", None
        time.sleep(0.1)
    raise Failed(f"the Docker engine {ended or f'did not answer within {START_S:.0f} s: {look().detail}'}", log)


def stop(paths: Paths) -> str:
    """End the engine that setup started, and no other; says what was done."""
    pid = _ours(paths)
    if pid is None:
        _pid_file(paths).unlink(missing_ok=True)
        return "no Docker engine started by setup is running: nothing to stop"
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _ours(paths) is not None:
        if time.monotonic() > deadline:
            raise Failed(f"the Docker engine (process {pid}) did not end within {STOP_S:.0f} s")
        time.sleep(0.05)
    _pid_file(paths).unlink(missing_ok=True)
    return f"stopped the Docker engine that setup had started (process {pid})"


def _ours(paths: Paths) -> int | None:
    try:
        pid = int(_pid_file(paths).read_text())
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return None
    return pid if f"{MARKER}={_pid_file(paths)}".encode() in environment else None


def _pid_file(paths: Paths) -> Path:
    return paths.cache / "dockerd.pid"


def _parse(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
