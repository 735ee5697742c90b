"""Start and stop the IMEX domain of a job on this node; `slurm.health.imex` says what it is."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurm.control import nodes
from slurm.health.check import HealthProblem
from slurm.health.imex import (
    CHECK,
    SERVICE,
    DomainStatus,
    describe_missing,
    find_major,
    parse_status,
    select_addresses,
    set_options,
)

ROOT = Path("/")
ROOT_UID = 0
START_S = 60.0
"""Time for the service to start and to connect with the others; AWS and NVIDIA allow 60 s for the start alone."""
STOP_S = 15.0
COMMAND_S = 10.0
PERMIT = "run/muster/imex"
"""Without this file systemd does not start the service, so that none runs at boot with a list of other nodes."""
_ETC = "etc/nvidia-imex"
_CHANNEL = "dev/nvidia-caps-imex-channels/channel0"
_POLL_S = 0.5


class ImexError(Exception):
    """Why the domain of a job is not up."""


def start_domain(
    job_nodes: str, ultraserver: Collection[str], uid: int, limit_s: float = START_S
) -> list[HealthProblem]:
    """Start the service for the nodes of a job of user `uid`, wait until all are connected; return what went wrong."""
    try:
        end_domain()
        addresses = _read_addresses(job_nodes, ultraserver)
        _write_config(addresses)
        _open_channel(uid)
        deadline = time.monotonic() + limit_s
        _start_service(limit_s)
        _wait_for_domain(addresses, deadline)
    except (ImexError, OSError, subprocess.SubprocessError) as error:
        # The services of other nodes must not wait for this one. One that failed stays so, for the health check to see.
        with suppress(OSError, subprocess.SubprocessError):
            _stop_service()
        return [HealthProblem(CHECK.name, str(error))]
    return []


def end_domain() -> None:
    """Stop the service and take the channel from the user of the job; without a domain, nothing happens."""
    with suppress(FileNotFoundError):
        _set_owner(ROOT / _CHANNEL, ROOT_UID)
    _stop_service()
    # A unit that failed in an earlier job could otherwise be refused because it was started too often.
    _run("systemctl", "reset-failed", SERVICE, limit_s=COMMAND_S)


def _stop_service() -> None:
    """Stop the service, by force if it does not end; a service that is not running is no error."""
    (ROOT / PERMIT).unlink(missing_ok=True)
    try:
        _run("systemctl", "stop", SERVICE, limit_s=STOP_S)
    except subprocess.TimeoutExpired:
        _run("systemctl", "kill", "--signal=SIGKILL", SERVICE, limit_s=COMMAND_S)


def _read_addresses(job_nodes: str, ultraserver: Collection[str]) -> dict[str, str]:
    done = _run(*nodes.SHOW_NODES, job_nodes, limit_s=COMMAND_S)
    addresses = select_addresses(nodes.parse_nodes(done.stdout), ultraserver)
    if not addresses:
        raise ImexError(f"slurmctld does not know the addresses of {job_nodes or 'the job'}: {_last_line(done)}")
    return addresses


def _write_config(addresses: Mapping[str, str]) -> None:
    folder = ROOT / _ETC
    config = folder / "config.cfg"
    if not config.exists():
        raise ImexError(f"{SERVICE} is not installed: {config} does not exist")
    text = config.read_text()
    if set_options(text) != text:
        config.write_text(set_options(text))
    # All nodes must list the same addresses in the same order.
    (folder / "nodes_config.cfg").write_text("".join(f"{address}\n" for address in addresses.values()))


def _open_channel(uid: int) -> None:
    """Let only the job's user map memory through the channel; a node has one job, so one channel is enough."""
    channel = ROOT / _CHANNEL
    if not channel.exists():
        _create_channel(channel)
    _set_owner(channel, uid)


def _create_channel(channel: Path) -> None:
    major = find_major((ROOT / "proc/devices").read_text())
    if major is None:
        raise ImexError("the driver has no IMEX channels: /proc/devices does not list nvidia-caps-imex-channels")
    channel.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(channel, stat.S_IFCHR | 0o600, os.makedev(major, 0))


def _set_owner(channel: Path, uid: int) -> None:
    # The driver creates the channel for all users.
    channel.chmod(0o600)
    os.chown(channel, uid, -1)


def _start_service(limit_s: float) -> None:
    permit = ROOT / PERMIT
    permit.parent.mkdir(parents=True, exist_ok=True)
    permit.touch()
    try:
        done = _run("systemctl", "start", SERVICE, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        raise ImexError(f"{SERVICE} did not start within {limit_s:g} s") from None
    if done.returncode:
        raise ImexError(f"{SERVICE} did not start: {_last_line(done)}")


def _wait_for_domain(addresses: Mapping[str, str], deadline: float) -> None:
    while True:
        status = _read_status()
        if status.state == "UP":
            return
        if time.monotonic() > deadline:
            raise ImexError(f"the domain is not up: {describe_missing(status, addresses)}")
        time.sleep(_POLL_S)


def _read_status() -> DomainStatus:
    try:
        return parse_status(_run(f"{SERVICE}-ctl", "-N", limit_s=COMMAND_S).stdout)
    except subprocess.TimeoutExpired:
        return DomainStatus("", {})


def _run(*command: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit_s)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines: Sequence[str] = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
