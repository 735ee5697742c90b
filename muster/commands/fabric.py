"""`muster fabric`: measures the fabric between nodes, shows each pair, and takes nodes that are below away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from infra.engine.stop import BAD_INPUT, FAILED, INTERRUPTED, Stop
from infra.engine.typed import typed
from infra.home import StackHome
from infra.resources.job_queue import JobQueue
from infra.shell import read_inventory, run, target_of_inventory
from infra.targets.target import Launches
from muster.commands import screen
from muster.commands.fabric_report import Proof, basis, chosen, table
from muster.commands.stacks import require_running_stack
from muster.commands.submit import FOLDER, FollowedJob, follow, send
from muster.deployments import find_deployment
from slurm.control.nodes import LIST_NODES_BY_PARTITION, ListedNode, parse_listed_by_partition
from slurm.hostlist import expand, hostlist

JOB = "slurm/jobs/fabric.sbatch"
_PAIRS = "--export=ALL,FABRIC_PAIRS=always"


def fabric(name: str, partition: str | None, nodes: str | None, *, drain: bool) -> None:
    stack = require_running_stack(name)
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


def _nodes(stack: StackHome, login: str) -> list[ListedNode]:
    done = _asked(stack, login, LIST_NODES_BY_PARTITION)
    if done.returncode != 0:
        raise Stop(f"Slurm does not answer: {done.stderr.strip()}", typed("status", stack.name))
    return parse_listed_by_partition(done.stdout)


def _prove(stack: StackHome, login: str, partition: str, nodes: Sequence[str]) -> Proof:
    members = hostlist(nodes)
    options = [f"--partition={partition}", f"--nodes={len(nodes)}", f"--nodelist={members}", _PAIRS]
    followed = FollowedJob(send(stack, login, stack.home.repo / JOB, [], options))
    screen.out().print(f"job [bold]{followed.job}[/bold] measures {members}")
    try:
        follow(stack, login, followed)
    except KeyboardInterrupt:
        screen.say(f"job {followed.job} goes on; `{typed('ssh', stack.name, then=f'scancel {followed.job}')}` ends it")
        raise Stop("", code=INTERRUPTED) from None
    return _result(stack, login, partition, followed)


def _result(stack: StackHome, login: str, partition: str, followed: FollowedJob) -> Proof:
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
        screen.print_success("fabric: every pair of nodes is as it should be")
        return
    taken = _queue(stack).set_aside(reasons) if drain and reasons else ()
    for node, why in reasons.items():
        screen.print_failure(f"{node} {'drained' if node in taken else 'left as it is'}: {why}")
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
