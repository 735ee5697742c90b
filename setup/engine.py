"""The Docker engine: inspect it, start and stop it, and raise the kernel limits that its containers need."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from setup.facts import Engine, Facts
from setup.paths import Paths
from setup.run import Answer, SetupError, ask, raise_if_stopped, run

MARKER = "MUSTER_ENGINE"
START_TIMEOUT_S = 60.0
TAKEOVER_S = 10.0
STOP_TIMEOUT_S = 60.0

SYSCTLS = Path("/proc/sys")
LIMITS = {
    # Each node's systemd uses about five of the host's inotify instances. The default of 128 is enough for 25 nodes.
    "fs/inotify/max_user_instances": 4096,
    # All network namespaces share the host's neighbour table. 34 nodes that all know each other fill 34 x 33 entries;
    # the default is 1024: https://docs.kernel.org/networking/ip-sysctl.html (neigh/default/gc_thresh3).
    "net/ipv4/neigh/default/gc_thresh1": 4096,
    "net/ipv4/neigh/default/gc_thresh2": 8192,
    "net/ipv4/neigh/default/gc_thresh3": 16384,
}


def inspect_engine() -> Engine:
    """Return the state of the Docker engine that `docker` on this machine talks to."""
    host = os.environ.get("DOCKER_HOST", "")
    endpoint = find_endpoint(host)
    if endpoint and not endpoint.startswith("unix://"):
        return Engine("remote", f"DOCKER_HOST={host}" if host else f"the current Docker context names {endpoint}")
    answer = ask(["docker", "info", "-f", "{{json .}}"])
    return classify(answer, host=host, installed=shutil.which("dockerd") is not None)


def find_endpoint(host: str) -> str:
    """Return the address of the engine: DOCKER_HOST if it is set, else that of the client's context, else empty."""
    if host:
        return host
    answer = ask(["docker", "context", "inspect", "-f", "{{.Endpoints.docker.Host}}"])
    return answer.out if answer.code == 0 else ""


def classify(answer: Answer, *, host: str, installed: bool) -> Engine:
    """Return the state of the engine from the output of `docker info`."""
    info = _parse_json(answer.out)
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


def start(paths: Paths, _: Facts, log: Path) -> None:
    """Start this machine's engine and wait until it answers."""
    # Installing the engine's package may just have started it.
    if inspect_engine().state == "running":
        return
    if Path("/run/systemd/system").is_dir():
        run(["systemctl", "start", "docker"], log)
        wait_until_running(log, None)
        return
    wait_until_running(log, launch(paths, ["dockerd"], log))


def launch(paths: Paths, argv: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start an engine in the background, for machines without an init system; `stop` finds it by its pid file."""
    with log.open("ab") as out:
        return subprocess.Popen(
            # The shell writes its pid before it becomes the engine, so stop() always finds the engine, even if setup
            # is killed at this point.
            ["/bin/sh", "-c", 'echo $$ > "$0.new" && mv "$0.new" "$0" && exec "$@"', str(_pid_file(paths)), *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, MARKER: str(_pid_file(paths))},
        )


def wait_until_running(log: Path, process: "subprocess.Popen[bytes] | None") -> None:
    """Wait until the engine answers; raise SetupError if it ends or does not answer in time."""
    deadline, ended = time.monotonic() + START_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        raise_if_stopped()
        if inspect_engine().state == "running":
            return
        if process is not None and process.poll() is not None:
            # It may have ended because another engine is just starting, which can be used instead.
            deadline = min(deadline, time.monotonic() + TAKEOVER_S)
            ended, process = f"ended at once with exit code {process.returncode}", None
        time.sleep(0.1)
    timed_out = f"did not answer within {START_TIMEOUT_S:.0f} s: {inspect_engine().detail}"
    raise SetupError(f"the Docker engine {ended or timed_out}", log)


def stop(paths: Paths) -> str:
    """Stop the engine if setup started it; return a message about what was done."""
    pid = _launched_pid(paths)
    if pid is None:
        _pid_file(paths).unlink(missing_ok=True)
        return "no Docker engine started by setup is running: nothing to stop"
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _launched_pid(paths) is not None:
        if time.monotonic() > deadline:
            raise SetupError(f"the Docker engine (process {pid}) did not end within {STOP_TIMEOUT_S:.0f} s")
        time.sleep(0.05)
    _pid_file(paths).unlink(missing_ok=True)
    return f"stopped the Docker engine that setup had started (process {pid})"


def limits_are_raised(sysctls: Path = SYSCTLS) -> bool:
    """Return whether every limit is high enough, or setup may not raise it.

    Without root, a cluster with too many nodes for the limits reports that itself.
    """
    return os.geteuid() != 0 or not any(_low_limits(sysctls))


def raise_limits(_paths: Paths, _facts: Facts, log: Path, sysctls: Path = SYSCTLS) -> None:
    """Raise the kernel limits that are too low for many nodes; never lower one."""
    with log.open("a") as out:
        for name, limit in _low_limits(sysctls):
            out.write(f"{name}: {limit.read_text().strip()} -> {LIMITS[name]}\n")
            try:
                limit.write_text(f"{LIMITS[name]}\n")
            except OSError as error:
                out.write(f"{name}: not changed ({error})\n")


def _low_limits(sysctls: Path) -> Iterator[tuple[str, Path]]:
    """Yield the limits to raise, without those that this kernel lacks or does not let us write."""
    for name, minimum in LIMITS.items():
        limit = sysctls / name
        if os.access(limit, os.W_OK) and int(limit.read_text()) < minimum:
            yield name, limit


def _launched_pid(paths: Paths) -> int | None:
    """Return the process id of the engine that setup launched, if it is still that process."""
    try:
        pid = int(_pid_file(paths).read_text())
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return None
    return pid if f"{MARKER}={_pid_file(paths)}".encode() in environment else None


def _pid_file(paths: Paths) -> Path:
    return paths.cache / "dockerd.pid"


def _parse_json(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
