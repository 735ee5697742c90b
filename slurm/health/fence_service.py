"""`health.pyz fence`: the service of a compute node that stops its jobs while the node is cut off."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm.control import jobs, nodes
from slurm.health.fence import MIN_PAUSE_S, Cluster, decide, parse_cluster
from slurm.health.job_processes import signal_jobs
from slurm.health.stray_jobs import REGISTER, end_strays, find_strays, list_local_jobs

CONF = Path("/run/slurm/conf/slurm.conf")
"""The configuration that slurmd has fetched from slurmctld."""
NAME = "muster-fence"
UNIT_PATH = f"/etc/systemd/system/{NAME}.service"
UNIT = """\
[Unit]
Description=muster: stop jobs while this node is cut off from its cluster
After=network-online.target

[Service]
ExecStart=/usr/bin/python3 /etc/muster/health.pyz fence
Restart=always
RestartSec=5
OOMScoreAdjust=-500
MemoryMax=256M

[Install]
WantedBy=multi-user.target
"""
# A port on which nothing listens: the kernel refuses the connection, without a daemon that would log it. A firewall may
# drop what goes there, so the ports of slurmctld and sshd are tried too.
_CLOSED_PORT = 9
_CONTROLLER_PORTS = (_CLOSED_PORT, 6817, 22)
_SLURMD_PORTS = (6818, 22)
_PROBE_S = 2.0
_PROBED_PEERS = 8
_COMMAND_S = 10.0
_STOPPED = "jobs-stopped"


def run(state: Path) -> int:
    """Watch the controller until the process is ended; `state` is a folder that is emptied at boot."""
    watch = Watch(state / _STOPPED)
    while True:
        cluster = read_cluster()
        time.sleep(MIN_PAUSE_S if cluster is None else watch.look(cluster))


class Watch:
    """The looks at the controller, and whether jobs are stopped; `mark` is a file that outlives this process."""

    def __init__(self, mark: Path, read_time: Callable[[], float] = time.monotonic) -> None:
        self._mark = mark
        self._is_stopped = mark.exists()
        self._read_time = read_time
        self._last = read_time()
        self._port = _CLOSED_PORT

    def look(self, cluster: Cluster) -> float:
        """Look at the controller, stop or return jobs as that requires, and return the seconds until the next look."""
        port = find_answering_port(cluster.controller, self._port)
        answers = port is not None
        self._port = port or self._port
        silent_s, stopped = self._read_time() - self._last, self._is_stopped
        # Probed only if it matters: it opens connections to other nodes.
        needs_probe = not answers and not stopped and silent_s >= cluster.limit_s
        verdict = decide(
            answers=answers,
            silent_s=silent_s,
            limit_s=cluster.limit_s,
            stopped=stopped,
            cut_off=needs_probe and is_cut_off(cluster),
        )
        if verdict == "stop":
            self._stop(silent_s)
        if answers and (verdict == "wait" or self._rejoin()):
            self._last = self._read_time()
        return MIN_PAUSE_S if stopped else cluster.pause_s

    def _stop(self, silent_s: float) -> None:
        is_new, self._is_stopped = not self._is_stopped, True
        try:
            # First: if this program is killed, the next one continues what is stopped.
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        except OSError as error:
            # A full /run must not let the jobs run on.
            if is_new:
                _print(f"the mark of stopped jobs was not written: {error}")
        stopped = signal_jobs(signal.SIGSTOP, list_local_jobs())
        if is_new:
            _print(f"no machine of the cluster has answered for {silent_s:.0f} s; stopped {_list(stopped)}")

    def _rejoin(self) -> bool:
        """End the jobs that slurmctld does not have here any more, continue the others, and register if necessary."""
        try:
            local = list_local_jobs()
            listed = jobs.parse_states(_run(jobs.list_all_on_node(_node_name())))
            strays = find_strays(local, listed)
            listed_nodes = nodes.parse_listed(_run(nodes.list_node(_node_name())))
            if strays:
                end_strays(strays, _run)
            elif any(_is_missed(node) for node in listed_nodes):
                _run(REGISTER)
        except (OSError, subprocess.SubprocessError) as error:
            _print(f"slurmctld does not answer yet: {error}")
            return False
        suspended = {job for job, state in listed.items() if state == "SUSPENDED"}
        continued = signal_jobs(signal.SIGCONT, local - set(strays) - suspended) if self._is_stopped else ()
        self._mark.unlink(missing_ok=True)
        self._is_stopped = False
        _print(f"the controller answers again; continued {_list(continued)}, ended {_list(strays)}")
        return True


def read_cluster() -> Cluster | None:
    """Return what slurmd's configuration tells about the cluster; None while there is none."""
    try:
        return parse_cluster(CONF.read_text(encoding="utf-8"), _node_name())
    except OSError:
        return None


def _is_missed(node: nodes.ListedNode) -> bool:
    """Return whether slurmctld itself marked a node DOWN: one that a person did must not register, which ends that."""
    return node.state.startswith("down") and node.reason.startswith("Not responding")


def find_answering_port(controller: str, last: int) -> int | None:
    """Return a port of the controller's machine that answers, the last one first; None if the machine is silent."""
    if does_answer(controller, last):
        return last
    others = [port for port in _CONTROLLER_PORTS if port != last]
    # At the same time, because a port that drops takes the full limit.
    with ThreadPoolExecutor(len(others)) as pool:
        answers = pool.map(lambda port: does_answer(controller, port), others)
        return next((port for port, is_answered in zip(others, answers) if is_answered), None)  # noqa: B905  # 3.9


def is_cut_off(cluster: Cluster) -> bool:
    """Return whether neither the controller nor a sample of the other nodes answers; False if there are none."""
    if not cluster.peers:
        return False
    peers = random.sample(cluster.peers, min(_PROBED_PEERS, len(cluster.peers)))
    probes = [(cluster.controller, port) for port in _CONTROLLER_PORTS]
    probes += [(peer, port) for peer in peers for port in _SLURMD_PORTS]
    with ThreadPoolExecutor(len(probes)) as pool:
        return not any(pool.map(lambda probe: does_answer(*probe), probes))


def does_answer(address: str, port: int) -> bool:
    """Return whether a machine answers, even if it refuses the connection."""
    try:
        with socket.create_connection((address, port), timeout=_PROBE_S):
            return True
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def _run(command: Iterable[str]) -> str:
    done = subprocess.run(list(command), check=True, capture_output=True, text=True, timeout=_COMMAND_S)
    return done.stdout


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _list(numbers: Iterable[str]) -> str:
    return ", ".join(f"job {number}" for number in sorted(numbers, key=int)) or "no job"


def _print(text: str) -> None:
    print(f"fence: {text}", file=sys.stderr, flush=True)
