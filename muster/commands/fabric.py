"""`muster fabric`: measures the fabric between nodes, shows each pair, and takes nodes that are below away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from infra.engine.stop import BAD_INPUT, FAILED, INTERRUPTED, Stop
from infra.engine.typed import typed
from infra.home import StackHome
from infra.resources.job_queue import JobQueue
from infra.shell import read_inventory, run, target_of_inventory
from infra.targets.target import Launches
from muster.commands import screen
from muster.commands.fabric_basis import basis
from muster.commands.fabric_nodes import chosen
from muster.commands.submit import FOLDER, Followed, follow, send
from muster.commands.where import running_stack
from muster.deployments import find_deployment
from slurm.control.nodes import LIST_NODES_BY_PARTITION, ListedNode, parse_listed_by_partition
from slurm.health.drain import FABRIC_PREFIX, REASON_MAX_CHARS
from slurm.hostlist import expand, hostlist

JOB = "slurm/jobs/fabric.sbatch"
_PAIRS = "--export=ALL,FABRIC_PAIRS=always"


@dataclass(frozen=True)
class Proof:
    """What the job of one partition found."""

    partition: str
    fabric: str
    networks: Mapping[str, str]
    """What NCCL used, by node; empty where the ranks had no GPUs."""
    findings: Sequence[str]
    pairs: Sequence[Mapping[str, Any]]
    below: Mapping[str, str]
    unclear: str

    @property
    def reasons(self) -> dict[str, str]:
        """As Slurm is told."""
        return {node: f"{FABRIC_PREFIX}{why}"[:REASON_MAX_CHARS] for node, why in self.below.items()}


def fabric(name: str, partition: str | None, nodes: str | None, *, drain: bool) -> None:
    stack = running_stack(name)
    known = read_inventory(stack)
    target_of_inventory(known).check_shell_tools()
    login = known.login.name
    named = expand(nodes) if nodes else ()
    wanted, left_out = chosen(_nodes(stack, login), partition, named)
    for line in left_out:
        screen.say(line)
    if not wanted:
        raise Stop("no partition has two nodes to measure", typed("status", name), BAD_INPUT)
    proofs = [_prove(stack, login, part, members) for part, members in wanted.items()]
    for proof in proofs:
        screen.out().print("", table(proof))
        if said := basis(proof.partition, known.sets):
            screen.say(said)
    _conclude(stack, proofs, drain=drain)


def table(proof: Proof) -> Table:
    drawn = screen.table(
        "nodes", "network", "GB/s", "expected", "share", "verdict", right=["GB/s", "expected", "share"]
    )
    for pair in proof.pairs:
        nodes, speed, expected = pair["nodes"], pair["gb_per_s"], pair["expected"]
        used = sorted({proof.networks.get(node) or proof.fabric for node in nodes})
        bad = [node for node in nodes if node in proof.below]
        drawn.add_row(
            " - ".join(nodes),
            ", ".join(used),
            f"{speed:.2f}",
            f"{expected:.2f}" if expected else "unknown",
            f"{speed / expected:.0%}" if expected else "",
            f"[red]{', '.join(bad)} is below[/red]" if bad else "[green]good[/green]",
        )
    return drawn


def _nodes(stack: StackHome, login: str) -> list[ListedNode]:
    done = _asked(stack, login, LIST_NODES_BY_PARTITION)
    if done.returncode != 0:
        raise Stop(f"Slurm does not answer: {done.stderr.strip()}", typed("status", stack.name))
    return parse_listed_by_partition(done.stdout)


def _prove(stack: StackHome, login: str, partition: str, nodes: Sequence[str]) -> Proof:
    members = hostlist(nodes)
    options = [f"--partition={partition}", f"--nodes={len(nodes)}", f"--nodelist={members}", _PAIRS]
    followed = Followed(send(stack, login, stack.home.repo / JOB, [], options))
    screen.out().print(f"job [bold]{followed.job}[/bold] measures {members}")
    try:
        follow(stack, login, followed)
    except KeyboardInterrupt:
        screen.say(f"job {followed.job} goes on; `{typed('ssh', stack.name, then=f'scancel {followed.job}')}` ends it")
        raise Stop("", code=INTERRUPTED) from None
    return _result(stack, login, partition, followed)


def _result(stack: StackHome, login: str, partition: str, followed: Followed) -> Proof:
    done = _asked(stack, login, f"cat {FOLDER}/fabric-{followed.job}/result.json")
    if done.returncode != 0:
        raise Stop(f"job {followed.job} {followed.state} before it had a result, log {followed.log}", code=FAILED)
    return Proof(partition=partition, **json.loads(done.stdout))


def _asked(stack: StackHome, login: str, script: str) -> subprocess.CompletedProcess[str]:
    try:
        return run(stack, login, script)
    except subprocess.TimeoutExpired:
        raise Stop("the login node does not answer", typed("status", stack.name)) from None


def _conclude(stack: StackHome, proofs: Sequence[Proof], *, drain: bool) -> None:
    reasons = {node: why for proof in proofs for node, why in proof.reasons.items()}
    unclear = [f"{proof.partition}: {proof.unclear}" for proof in proofs if proof.unclear]
    if not reasons and not unclear:
        screen.good("fabric: every pair of nodes is as it should be")
        return
    taken = _queue(stack).set_aside(reasons) if drain and reasons else ()
    for node, why in reasons.items():
        screen.bad(f"{node} {'drained' if node in taken else 'left as it is'}: {why}")
    what = [*unclear, *([f"below: {', '.join(reasons)}"] if reasons else [])]
    raise Stop(
        "; ".join(what),
        _what_next(taken, replaced=isinstance(target_of_inventory(read_inventory(stack)), Launches)),
        FAILED,
    )


def _queue(stack: StackHome) -> JobQueue:
    """Return the queue of the cluster that was created; the stack file may have been changed since."""
    target, deployment = find_deployment(stack)
    target.check_access(deployment)
    return target.queue(deployment)


def _what_next(taken: Sequence[str], *, replaced: bool) -> str:
    if not taken:
        return ""
    if replaced:
        return "nothing to do: other machines take their names within minutes"
    return f"fix them, then as root on the controller: `scontrol update nodename={hostlist(taken)} state=resume`"
