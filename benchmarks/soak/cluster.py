"""The cluster under soak: what runs where, killing its parts, and what is left on its machines."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any

from benchmarks.soak.bars import Checkpoints, Leftovers
from benchmarks.soak.ledger import Hit
from benchmarks.soak.plan import Kill, Part, choose_node
from slurm.control import accounting, jobs
from slurm.control.accounting import JobRecord, parse_records
from slurm.control.nodes import parse_nodes, show_nodes
from tests.harness import Stack

HOME = "/shared/home/muster"
RUN = f"{HOME}/runs/soak"
FOLDER = f"{HOME}/soak"
USER = "muster"
# What kills each part inside a machine; it succeeds if there was something to kill.
_PROCESSES = {
    "rank": "pkill -9 -n -f 'python.* -m trainer '",
    "torchrun": "pkill -9 -f 'torch[.]distributed[.]run'",
    "srun": "pkill -9 -x srun",
}
_KILL_DAEMON = 'pid=$(systemctl show -p MainPID --value {0}) && [ "$pid" -gt 0 ] && kill -9 "$pid"'
# The signals of crashes: SIGKILL leaves no core dump, so the punisher causes none.
_CRASHES = "code=dumped|status=(4/ILL|6/ABRT|7/BUS|8/FPE|11/SEGV)"
_LIST_CRASHES = f"""find /var /tmp /run /root {HOME} -type f \\( -name core -o -name 'core.[0-9]*' \\) 2>/dev/null
    journalctl --quiet --no-pager --output=cat | grep -E '{_CRASHES}' || true"""
# slurmstepd belongs to root; all others to the user whose jobs have ended.
_LIST_PROCESSES = f"""ps -u {USER} -o args= | grep -vE '^(sshd|bash -s|ps|grep|[(]sd-pam|.*systemd --user)' || true
    pgrep -a slurmstepd || true"""
_READ_CHECKPOINTS = f"""cd / && PYTHONPATH=/shared/muster /shared/muster/env/bin/python - <<'END'
import json, pathlib
from trainer.checkpoint import folder, manifest
problems, checked = [], 0
for published in folder.list_published(pathlib.Path("{RUN}/checkpoints")):
    checked += 1
    try:
        content = manifest.read_manifest(published.path)
        damage = manifest.check_sizes(published.path, content) or manifest.check_content(published.path, content, 0, 1)
    except Exception as error:
        damage = [str(error)]
    problems += [f"{{published.path.name}}: {{problem}}" for problem in damage]
print(json.dumps({{"checked": checked, "problems": problems}}))
END"""


def kill(stack: Stack, planned: Kill, training: str) -> Hit | None:
    """Kill a part of the cluster and return what was hit; None if there was nothing to kill."""
    nodes, part = list_training_nodes(stack, training), planned.part
    if part in ("node", "controller"):
        name = "controller" if part == "controller" else choose_node(list_compute(stack), planned.choice)
        return _restart_machine(stack, part, name, hit_training=name in nodes)
    if part == "slurmctld":
        return _kill_process(stack, part, "controller", _KILL_DAEMON.format(part))
    if part == "slurmd":
        return _kill_process(stack, part, choose_node(list_compute(stack), planned.choice), _KILL_DAEMON.format(part))
    if not nodes:
        return None
    # srun runs beside the batch script.
    node = nodes[0] if part == "srun" else choose_node(nodes, planned.choice)
    return _kill_process(stack, part, node, _PROCESSES[part], hit_training=True)


def _kill_process(stack: Stack, part: Part, node: str, script: str, *, hit_training: bool = False) -> Hit | None:
    # A machine that was killed a moment ago may not run anything yet.
    done = _run(stack, node, script)
    return Hit(time.time(), part, node, hit_training) if done.returncode == 0 else None


def _restart_machine(stack: Stack, part: Part, name: str, *, hit_training: bool) -> Hit:
    container = stack.container(name)
    container.kill()
    killed = time.time()
    container.start()
    return Hit(killed, part, name, hit_training)


def read(stack: Stack, node: str, script: str) -> str:
    """Run a script as root on a node and return its output; exit if it fails: nothing would look like no problem."""
    done = _run(stack, node, script)
    if done.returncode != 0:
        raise SystemExit(f"on {node}: {script}\nexited {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


def _run(stack: Stack, node: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the container of a node, which needs neither SSH nor Slurm."""
    command = ["docker", "exec", "-i", f"muster-{stack.cluster}-{node}", "bash", "-s"]
    return subprocess.run(command, input=script, text=True, capture_output=True, check=False, timeout=120)


def list_compute(stack: Stack) -> list[str]:
    """Return the names of the compute nodes."""
    return [node["name"] for node in stack.inventory["nodes"] if node["role"] == "compute"]


def list_training_nodes(stack: Stack, training: str) -> list[str]:
    """Return the nodes of the training job; none while it waits, or while slurmctld does not answer."""
    return stack.ssh(
        "login", f"timeout 10 bash -c {shlex.quote(jobs.list_hostnames(training))} 2>/dev/null || true"
    ).split()


def read_json_lines(stack: Stack, file: str) -> list[dict[str, Any]]:
    """Return the complete lines of a file in the run's folder."""
    text = stack.ssh("login", f"cat {RUN}/{file} 2>/dev/null || true")
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def read_records(stack: Stack) -> list[JobRecord]:
    """Return the records of all jobs."""
    return parse_records(stack.ssh("login", accounting.LIST_RECORDS))


def list_queue(stack: Stack) -> list[str]:
    """Return state and start of every job that has not ended; a line that says so if slurmctld does not answer."""
    return stack.ssh("login", f"{jobs.LIST_STARTS} 2>/dev/null || echo 'slurmctld does not answer'").splitlines()


def read_checkpoints(stack: Stack) -> Checkpoints:
    """Compare every published checkpoint with the checksums in its manifest."""
    return Checkpoints(**json.loads(stack.ssh("login", _READ_CHECKPOINTS)))


def list_crashes(stack: Stack) -> set[str]:
    """Return the core dumps and the crashed services of all machines."""
    names = ["controller", *list_compute(stack)]
    return {f"{name}: {line}" for name in names for line in read(stack, name, _LIST_CRASHES).splitlines()}


def read_leftovers(stack: Stack, crashes_before: set[str]) -> Leftovers:
    """Return what is left after the last job has ended."""
    processes = [
        f"{name}: {line}" for name in list_compute(stack) for line in read(stack, name, _LIST_PROCESSES).splitlines()
    ]
    return Leftovers(
        core_dumps=sorted(list_crashes(stack) - crashes_before),
        processes=processes,
        queued=list_queue(stack),
        out_of_service=list_out_of_service(stack),
    )


def list_out_of_service(stack: Stack) -> list[str]:
    """Return the compute nodes that take no jobs, each with its state and the reason of it."""
    nodes = parse_nodes(stack.ssh("controller", f"{show_nodes()} 2>/dev/null || true", user="root"))
    missing = [f"{name}: slurmctld does not list it" for name in list_compute(stack) if name not in nodes]
    return missing + [f"{name}: {node}, {node.reason}" for name, node in nodes.items() if node.out_of_service]


def wait_for(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until something happens; return False if it does not within these seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(1.0)
    return True
