"""The ready gate: one job per group on all its nodes at once, whose ranks all-reduce over the fabric."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, Protocol

from cluster.inventory import Inventory, Node
from slurm.node_state import NodeState, parse_nodes
from slurm.probe import probe
from slurm.verdict import START, GateError, judge, last_error, unfit

__all__ = ["GateError", "Ready", "check"]

# What a rank needs with torch in it, and how much of a very small node it may have.
RANK_MB = 512
RANK_SHARE = 0.7
# Two, where they are free: Slurm puts the ranks of all local nodes on the same first core, where they would take turns.
RANK_CPUS = 2
POLL_S = 0.2
# Slurm's words when the nodes that were free a moment ago have been given to another job.
_TAKEN = ("Unable to allocate resources: Requested nodes are busy", "Immediate execution impossible")
_VARIABLES = (
    "PATH=/usr/bin:/bin",
    "OMP_NUM_THREADS=1",
    "PYTHONDONTWRITEBYTECODE=1",
    # Only the ring that the sum goes round is connected: every rank with every other takes longer than all the rest.
    "TORCH_GLOO_LAZY_INIT=1",
    "TORCH_CPP_LOG_LEVEL=FATAL",
)
# What slurmctld uses where it does not say.
_KILL_WAIT_S = 30.0
_FREE = "wait for the jobs there (`squeue`) to end, or `scancel` them, then `muster up` again"
_LOOK = "look whether the node runs; `muster up` again heals one that is gone"


class Completed(Protocol):
    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...


Run = Callable[[str], Completed]
State = Literal["start", "ok", "skipped", "failed"]
Report = Callable[[str, State, str], None]
"""Called with (node, state, detail)."""


@dataclass(frozen=True)
class Ready:
    nodes: list[str]
    """All of the cluster; each is in exactly one of the next three."""
    tested: list[str]
    """A job of this run crossed them."""
    proven_earlier: list[str]
    """Held by jobs now; they passed before and are the same machines."""
    left_out: dict[str, str]
    """Taken away by a person, whose reason stands beside the name."""
    groups: list[str]
    ranks: int
    seconds: float
    at: str

    def as_output(self) -> dict[str, Any]:
        return asdict(self)


def check(  # noqa: PLR0913
    run: Run, inventory: Inventory, env_path: str, user: str, report: Report, *, proven: Collection[str] = ()
) -> Ready:
    """Asks the cluster through `run`, which runs a script as root on the controller.

    Nodes in `proven` passed an earlier gate: while jobs fill them they are left alone.
    """
    began = time.monotonic()
    groups = _groups(inventory)
    gate = _Gate(run, env_path, f"{inventory.mounts[0]}/muster", user, len(inventory.compute), frozenset(proven))

    def prove(group: str) -> _Proof:
        nodes = groups[group]
        for node in nodes:
            report(node.name, "start", f"one job across the nodes of {group}")
        try:
            proof = gate.prove(group, nodes)
        except GateError as error:
            report(error.node, "failed", f"{error.step}: {error.line}")
            raise
        _tell(proof, report)
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


@dataclass(frozen=True)
class _Proof:
    """What became of each node of a group."""

    tested: list[str]
    proven_earlier: list[str]
    left_out: dict[str, str]


def _tell(proof: _Proof, report: Report) -> None:
    for name in proof.tested:
        report(name, "ok", f"sum over {len(proof.tested)} rank{'' if len(proof.tested) == 1 else 's'} is right")
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
    nodes_in_all: int
    proven: frozenset[str]

    @property
    def deadline_s(self) -> float:
        # Importing torch takes a second of CPU per rank, and local nodes share the cores of one machine.
        return 45 + 3 * self.nodes_in_all

    @property
    def settle_s(self) -> float:
        return 15 + 0.5 * self.nodes_in_all

    @cached_property
    def kill_wait_s(self) -> float:
        """How long Slurm lets a job that it has told to end hold its nodes."""
        said = re.search(r"^KillWait\s*=\s*(\d+)", self.run("scontrol show config 2>&1").out, re.MULTILINE)
        return float(said[1]) if said else _KILL_WAIT_S

    def prove(self, group: str, nodes: Sequence[Node]) -> _Proof:
        began = time.monotonic()
        memory_mb = min(RANK_MB, int(min(n.memory_mb for n in nodes) * RANK_SHARE))
        while True:
            states = self._wait_for_nodes(nodes, memory_mb, began)
            patient = time.monotonic() < began + self._patience_s(nodes, states)
            chosen = [
                n for n in nodes if states[n.name].can_take(memory_mb) and (patient or not self._ending(n, states))
            ]
            if not chosen:
                return _proof(nodes, chosen, states)
            cpus = min(RANK_CPUS, *(states[n.name].free_cpus for n in chosen))
            done = self.run(self._script(group, chosen, cpus, memory_mb))
            if patient and any(words in done.out for words in _TAKEN):
                continue
            problem = judge([n.name for n in chosen], done.code, done.out, self.deadline_s)
            if problem:
                raise self._blame(problem, chosen)
            return _proof(nodes, chosen, states)

    def _wait_for_nodes(self, nodes: Sequence[Node], memory_mb: int, began: float) -> dict[str, NodeState]:
        """Until every node works and has room, or is full and has passed before, or a person took it away."""
        while True:
            states = self._states(nodes)
            problem = unfit([n.name for n in nodes], states) or self._busy(nodes, states, memory_mb)
            if problem is None:
                return states
            if time.monotonic() > began + self._patience_s(nodes, states):
                raise self._with_log(problem)
            time.sleep(POLL_S)

    def _busy(self, nodes: Sequence[Node], states: dict[str, NodeState], memory_mb: int) -> GateError | None:
        for node in nodes:
            state = states[node.name]
            if not (state.left_out or state.can_take(memory_mb) or node.name in self.proven):
                return GateError(
                    node.name,
                    START,
                    f"jobs have filled it ({state}) before it was tested",
                    _FREE,
                )
        return None

    def _patience_s(self, nodes: Sequence[Node], states: dict[str, NodeState]) -> float:
        """A job that was killed may hold its nodes for KillWait; nodes that have not passed are worth that wait."""
        held = any(n.name not in self.proven and n.name in states and states[n.name].completing for n in nodes)
        return self.settle_s + (self.kill_wait_s if held else 0)

    def _ending(self, node: Node, states: dict[str, NodeState]) -> bool:
        """A node that has passed is not waited for as long as a killed job may hold it."""
        return node.name in self.proven and states[node.name].completing

    def _states(self, nodes: Sequence[Node]) -> dict[str, NodeState]:
        done = self.run(f"scontrol show node --oneliner {','.join(n.name for n in nodes)} 2>&1")
        if done.code != 0 and not parse_nodes(done.out):
            line = last_error(done.out) or f"exit code {done.code}"
            fix = "`systemctl status slurmctld` on the controller, then `muster up` again"
            raise GateError("controller", "scontrol show node", line, fix)
        return parse_nodes(done.out)

    def _blame(self, problem: GateError, nodes: Sequence[Node]) -> GateError:
        """A job that starts nowhere does not say which node held it up; Slurm, or the node's silence, may."""
        if problem.step != START:
            return problem
        bad = unfit([n.name for n in nodes], self._states(nodes))
        if bad:
            return GateError(bad.node, START, f"{bad.line}; {problem.line}", bad.fix)
        silent = self.run(probe(nodes)).out.split()
        if silent:
            return GateError(silent[0], START, f"it does not answer; {problem.line}", _LOOK)
        fix = _FREE if any(words in problem.line for words in _TAKEN) else _LOOK
        return GateError(problem.node, START, problem.line, fix)

    def _with_log(self, problem: GateError) -> GateError:
        """Adds the controller's last word about the node, which says why where the state only says what."""
        name = shlex.quote(problem.node)
        done = self.run(
            f"grep -hw -- {name} /var/log/slurm/slurmctld.log 2>/dev/null | grep -i 'error\\|not resp' | tail -n 1"
        )
        line = done.out.strip()
        if not line:
            return problem
        return GateError(problem.node, problem.step, f"{problem.line}; slurmctld: {line}", problem.fix)

    def _script(self, group: str, nodes: Sequence[Node], cpus: int, memory_mb: int) -> str:
        names = ",".join(n.name for n in nodes)
        srun = [
            "srun", f"--job-name=ready-{group}", f"--partition={group}", f"--nodes={len(nodes)}", f"--nodelist={names}",
            f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", f"--mem={memory_mb}M",
            f"--time={int(self.deadline_s // 60) + 1}", "--immediate=5", "--kill-on-bad-exit=1",
            f"--chdir={self.bundle}",
            f"--export={','.join(_VARIABLES)}",
        ]  # fmt: skip
        if nodes[0].gpus.count and nodes[0].gpus.kind == "real":
            srun.append("--gpus-per-node=1")
        # The ranks give up first, so that they can still say what they waited for.
        patience = max(10, self.deadline_s - 10)
        rank = [f"{self.env_path}/bin/python", "-m", "trainer.gate", nodes[0].name, nodes[0].address, f"{patience:g}"]
        limit = ["timeout", "--kill-after=5", f"{self.deadline_s:g}"]
        return shlex.join(["runuser", "-u", self.user, "--", *limit, *srun, *rank]) + " </dev/null 2>&1"


def _proof(nodes: Sequence[Node], chosen: Sequence[Node], states: dict[str, NodeState]) -> _Proof:
    tested = [n.name for n in chosen]
    left_out = {n.name: f"{s} ({s.reason})" for n in nodes if (s := states[n.name]).left_out}
    return _Proof(tested, [n.name for n in nodes if n.name not in {*tested, *left_out}], left_out)


def _groups(inventory: Inventory) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in inventory.compute:
        groups.setdefault(node.group or "", []).append(node)
    return groups
