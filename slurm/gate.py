"""The ready gate: one job per group on all its nodes at once, whose ranks all-reduce over the fabric."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, Protocol

from cluster.inventory import Inventory, Node
from cluster.plural import format_count
from slurm.alerts.install import hand_over
from slurm.control import config
from slurm.control.condensed import condense_ranks, show_free_nodes
from slurm.control.nodes import NodeState, parse_nodes, probe_nodes
from slurm.gate_verdict import START, GateError, find_error_line, find_unfit_node, judge_job
from slurm.hostlist import hostlist

__all__ = ["GateError", "Ready", "check"]

# Memory that a rank with torch needs, and the share of a very small node that it may take.
RANK_MB = 512
# With a GPU: CUDA, NCCL and the compiler need more.
GPU_RANK_MB = 8192
RANK_SHARE = 0.7
# Two CPUs if they are free: nodes that share a machine would otherwise all run their rank on its first core.
RANK_CPUS = 2
POLL_S = 0.2
JOB_S = 45.0
# Importing torch takes a second of CPU per rank, and all nodes may share the cores of one machine.
JOB_PER_NODE_S = 3.0
# Nodes that share a machine share its load too: with 30 processes for two cores, an import took more than a minute.
MAX_LOAD_FACTOR = 5.0
# Nodes with machines of their own read torch from a network filesystem that has not cached it; the load of the
# controller says nothing about them.
OWN_MACHINES_JOB_S = 120.0
_READ_LOAD = "cut -d ' ' -f 1 /proc/loadavg; nproc --all"
# More nodes than this are machines of their own, which import at the same time: each adds only its part of joining.
SHARING_NODES = 100
JOB_PER_MACHINE_S = 0.1
# Names and addresses of more nodes would not fit into one command.
PROBED_AT_A_TIME = 500
# srun prints one of these if nodes that were free a moment ago went to another job.
_TAKEN = ("Unable to allocate resources: Requested nodes are busy", "Immediate execution impossible")
_VARIABLES = (
    "PATH=/usr/bin:/bin",
    "OMP_NUM_THREADS=1",
    "PYTHONDONTWRITEBYTECODE=1",
    # Connect only the ring that the all-reduce uses: connecting every pair takes longer than the whole check.
    "TORCH_GLOO_LAZY_INIT=1",
    "TORCH_CPP_LOG_LEVEL=FATAL",
)
# Slurm's default, used if slurmctld does not report it.
_KILL_WAIT_S = 30.0
_FREE = "wait for the jobs there (`squeue`) to end, or `scancel` them, then run `muster up` again"
_LOOK = "check whether the node is running; `muster up` replaces one that is gone"


class Completed(Protocol):
    """The result of a script."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...


Run = Callable[[str], Completed]
"""Run a script as root on the controller."""
State = Literal["start", "ok", "skipped", "failed"]
Report = Callable[[str, State, str], None]
"""Report the state of a node, with details."""


@dataclass(frozen=True)
class Ready:
    """The result of the gate."""

    nodes: list[str]
    """All compute nodes; each is in exactly one of the next three."""
    tested: list[str]
    """Nodes on which a job of this run passed."""
    proven_earlier: list[str]
    """Nodes that jobs hold now; they passed an earlier gate and are the same machines."""
    left_out: dict[str, str]
    """Nodes that a person took out of service, with the reason."""
    groups: list[str]
    ranks: int
    seconds: float
    at: str
    """Time of the result in ISO 8601, UTC."""

    def as_output(self) -> dict[str, Any]:
        return asdict(self)


def check(  # noqa: PLR0913
    run: Run,
    inventory: Inventory,
    env_path: str,
    user: str,
    report: Report,
    *,
    proven: Collection[str] = (),
    job_s: float | None = None,
) -> Ready:
    """Return once a job has run across every node of every group; raise GateError with the node to look at.

    Nodes in `proven` passed an earlier gate and are skipped while jobs fill them. A job may take `job_s` seconds, plus
    some for each node (`limit_job_s`); without `job_s`, by the load of the controller if the nodes share its machine.
    """
    began = time.monotonic()
    groups = _group_nodes(inventory)
    if job_s is None:
        job_s = JOB_S * read_load_factor(run(_READ_LOAD).out) if inventory.single_host else OWN_MACHINES_JOB_S
    count = len(inventory.compute)
    gate = _Gate(
        run, env_path, f"{inventory.mounts[0]}/muster", user, count, frozenset(proven), limit_job_s(count, job_s)
    )

    def prove(group: str) -> _Proof:
        nodes = groups[group]
        for node in nodes:
            report(node.name, "start", f"one job across the nodes of {group}")
        try:
            proof = gate.prove(group, nodes)
        except GateError as error:
            report(error.node, "failed", f"{error.step}: {error.line}")
            _alert(run, f"the gate of {group} failed: {error.node}: {error.step}: {error.line}")
            raise
        _report_proof(proof, report)
        return proof

    with ThreadPoolExecutor(max_workers=max(1, len(groups))) as pool:
        proofs = list(pool.map(prove, groups))
    return Ready(
        nodes=[n.name for n in inventory.compute],
        tested=[name for p in proofs for name in p.tested],
        proven_earlier=[name for p in proofs for name in p.proven_earlier],
        left_out={name: reason for p in proofs for name, reason in p.left_out.items()},
        groups=list(groups),
        ranks=sum(len(p.tested) for p in proofs),
        seconds=round(time.monotonic() - began, 1),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def limit_job_s(nodes: int, job_s: float = JOB_S) -> float:
    """Return how many seconds the job may take on a cluster with so many nodes."""
    sharing = min(nodes, SHARING_NODES)
    return job_s + JOB_PER_NODE_S * sharing + JOB_PER_MACHINE_S * (nodes - sharing)


def read_load_factor(out: str) -> float:
    """Return the processes for each core of the controller, which nodes of one machine share; at least 1."""
    try:
        load, cores = out.split()
        return min(max(float(load) / int(cores), 1.0), MAX_LOAD_FACTOR)
    except (ValueError, ZeroDivisionError):
        return 1.0


@dataclass(frozen=True)
class _Proof:
    """The nodes of a group: tested, skipped and left out."""

    tested: list[str]
    proven_earlier: list[str]
    left_out: dict[str, str]


def _alert(run: Run, text: str) -> None:
    # Whatever keeps the alert from being sent matters less than the error of the gate.
    with suppress(Exception):
        run(hand_over(text))


def _report_proof(proof: _Proof, report: Report) -> None:
    for name in proof.tested:
        report(name, "ok", f"sum over {format_count(len(proof.tested), 'rank')} is right")
    for name in proof.proven_earlier:
        report(name, "skipped", "held by jobs; proven earlier")
    for name, reason in proof.left_out.items():
        report(name, "skipped", f"left out: {reason}")


@dataclass(frozen=True)
class _Gate:
    run: Run
    env_path: str
    bundle: str
    user: str
    total_nodes: int
    proven: frozenset[str]
    deadline_s: float

    @property
    def start_s(self) -> float:
        """How long nodes may take to become usable, in seconds."""
        return 15 + 0.5 * self.total_nodes

    @cached_property
    def kill_wait_s(self) -> float:
        """How long a job that Slurm ends may hold its nodes, in seconds."""
        seconds = config.read_seconds(self.run(f"{shlex.join(config.SHOW_CONFIG)} 2>&1").out, "KillWait")
        return _KILL_WAIT_S if seconds is None else seconds

    def prove(self, group: str, nodes: Sequence[Node]) -> _Proof:
        began = time.monotonic()
        rank_mb = GPU_RANK_MB if _has_gpus(nodes) else RANK_MB
        memory_mb = min(rank_mb, int(min(n.memory_mb for n in nodes) * RANK_SHARE))
        while True:
            states = self._wait_for_nodes(nodes, memory_mb, began)
            patient = time.monotonic() < began + self._patience_s(nodes, states)
            chosen = [
                n for n in nodes if states[n.name].can_take(memory_mb) and (patient or not self._is_ending(n, states))
            ]
            if not chosen:
                return _sort_nodes(nodes, chosen, states)
            cpus = min(RANK_CPUS, *(states[n.name].free_cpus for n in chosen))
            done = self.run(self._write_job(group, chosen, cpus, memory_mb))
            if patient and any(message in done.out for message in _TAKEN):
                continue
            problem = judge_job([n.name for n in chosen], done.code, done.out, self.deadline_s)
            if problem:
                raise self._blame(problem, chosen)
            return _sort_nodes(nodes, chosen, states)

    def _wait_for_nodes(self, nodes: Sequence[Node], memory_mb: int, began: float) -> dict[str, NodeState]:
        """Wait until each node has room for the job, or is full but passed earlier, or was taken out by a person."""
        while True:
            states = self._read_states(nodes, memory_mb)
            problem = find_unfit_node([n.name for n in nodes], states) or self._find_busy(nodes, states, memory_mb)
            if problem is None:
                return states
            if time.monotonic() > began + self._patience_s(nodes, states):
                raise self._add_log_line(problem)
            time.sleep(POLL_S)

    def _find_busy(self, nodes: Sequence[Node], states: dict[str, NodeState], memory_mb: int) -> GateError | None:
        for node in nodes:
            state = states[node.name]
            if not (state.left_out or state.can_take(memory_mb) or node.name in self.proven):
                return GateError(node.name, START, f"jobs filled it ({state}) before it was tested", _FREE)
        return None

    def _patience_s(self, nodes: Sequence[Node], states: dict[str, NodeState]) -> float:
        """Return how long to wait; a node that has not passed may be held for KillWait by a job that is ending."""
        held = any(n.name not in self.proven and n.name in states and states[n.name].completing for n in nodes)
        return self.start_s + (self.kill_wait_s if held else 0)

    def _is_ending(self, node: Node, states: dict[str, NodeState]) -> bool:
        """Return whether a job is ending on a node that passed earlier, for which the gate need not wait."""
        return node.name in self.proven and states[node.name].completing

    def _read_states(self, nodes: Sequence[Node], memory_mb: int) -> dict[str, NodeState]:
        done = self.run(show_free_nodes((n.name for n in nodes), RANK_CPUS, memory_mb))
        states = parse_nodes(done.out)
        if done.code != 0 and not states:
            line = find_error_line(done.out) or f"exit code {done.code}"
            fix = "`systemctl status slurmctld` on the controller, then run `muster up` again"
            raise GateError("controller", "node states", line, fix)
        return states

    def _blame(self, problem: GateError, nodes: Sequence[Node]) -> GateError:
        """Name the node that kept a job from starting: one in a bad state, or one that does not answer."""
        if problem.step != START:
            return problem
        bad = find_unfit_node([n.name for n in nodes], self._read_states(nodes, memory_mb=0))
        if bad:
            return GateError(bad.node, START, f"{bad.line}; {problem.line}", bad.fix)
        for first in range(0, len(nodes), PROBED_AT_A_TIME):
            probed = nodes[first : first + PROBED_AT_A_TIME]
            silent = self.run(probe_nodes({n.name: n.address for n in probed})).out.split()
            if silent:
                return GateError(silent[0], START, f"it does not answer; {problem.line}", _LOOK)
        fix = _FREE if any(message in problem.line for message in _TAKEN) else _LOOK
        return GateError(problem.node, START, problem.line, fix)

    def _add_log_line(self, problem: GateError) -> GateError:
        """Add slurmctld's last error about the node, which explains its state."""
        name = shlex.quote(problem.node)
        done = self.run(
            f"grep -hw -- {name} /var/log/slurm/slurmctld.log 2>/dev/null | grep -i 'error\\|not resp' | tail -n 1"
        )
        line = done.out.strip()
        if not line:
            return problem
        return GateError(problem.node, problem.step, f"{problem.line}; slurmctld: {line}", problem.fix)

    def _write_job(self, group: str, nodes: Sequence[Node], cpus: int, memory_mb: int) -> str:
        names = hostlist(n.name for n in nodes)
        srun = [
            "srun", f"--job-name=ready-{group}", f"--partition={group}", f"--nodes={len(nodes)}", f"--nodelist={names}",
            f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", f"--mem={memory_mb}M",
            f"--time={int(self.deadline_s // 60) + 1}", "--immediate=5", "--kill-on-bad-exit=1",
            f"--chdir={self.bundle}",
            f"--export={','.join(_VARIABLES)}",
        ]  # fmt: skip
        if _has_gpus(nodes):
            srun.append("--gpus-per-node=1")
        # The ranks time out first, so that they can still report what they waited for.
        patience = max(10, self.deadline_s - 10)
        rank = [f"{self.env_path}/bin/python", "-m", "trainer.gate", nodes[0].name, nodes[0].address, f"{patience:g}"]
        if _has_gpus(nodes):
            rank.append("gpu")
        limit = ["timeout", "--kill-after=5", f"{self.deadline_s:g}"]
        return condense_ranks(["runuser", "-u", self.user, "--", *limit, *srun, *rank]) + " </dev/null 2>&1"


def _has_gpus(nodes: Sequence[Node]) -> bool:
    """Return whether the nodes of a group, which are alike, have GPUs that compute."""
    return nodes[0].gpus.count > 0 and nodes[0].gpus.kind == "real"


def _sort_nodes(nodes: Sequence[Node], chosen: Sequence[Node], states: dict[str, NodeState]) -> _Proof:
    tested = [n.name for n in chosen]
    left_out = {n.name: f"{s} ({s.reason})" for n in nodes if (s := states[n.name]).left_out}
    return _Proof(tested, [n.name for n in nodes if n.name not in {*tested, *left_out}], left_out)


def _group_nodes(inventory: Inventory) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in inventory.compute:
        groups.setdefault(node.group or "", []).append(node)
    return groups
