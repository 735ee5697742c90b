"""`muster fabric`: measure the network between nodes, print the bandwidth of each pair, and drain slow nodes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, FAILED, INTERRUPTED, Stop
from infra.home import StackHome
from infra.resources.job_queue import JobQueue
from infra.shell import read_inventory, run, target_of_inventory
from infra.targets.mixins import Launches
from muster.commands import screen
from muster.commands.fabric_report import (
    FabricResult,
    build_pairs_table,
    describe_links,
    explain_expectation,
    select_nodes,
)
from muster.commands.stacks import require_running_stack
from muster.commands.submit import FOLDER, FollowedJob, follow, send
from muster.deployments import find_deployment
from slurm.control.nodes import LIST_NODES_BY_PARTITION, ListedNode, parse_listed_by_partition
from slurm.hostlist import expand, hostlist

JOB = "slurm/jobs/fabric.sbatch"
_PAIRS = "--export=ALL,FABRIC_PAIRS=always"


def fabric(name: str, partition: str | None, nodes: str | None, *, drain: bool) -> None:
    """Measure the network of each partition and drain the nodes that are too slow."""
    stack = require_running_stack(name)
    inventory = read_inventory(stack)
    target_of_inventory(inventory).check_shell_tools()
    login = inventory.login.name
    named = expand(nodes) if nodes else ()
    members_by_partition, skipped = select_nodes(_list_nodes(stack, login), partition, named)
    for line in skipped:
        screen.say(line)
    if not members_by_partition:
        raise Stop("no partition has two nodes that are up", format_command("status", name), BAD_INPUT)
    results = [_measure(stack, login, part, members) for part, members in members_by_partition.items()]
    for result in results:
        screen.out().print("", build_pairs_table(result))
        for note in (describe_links(result), explain_expectation(result.partition, inventory.sets)):
            if note:
                screen.say(note)
    _conclude(stack, results, drain=drain)


def _list_nodes(stack: StackHome, login: str) -> list[ListedNode]:
    done = _run_on_login(stack, login, LIST_NODES_BY_PARTITION)
    if done.returncode != 0:
        raise Stop(f"Slurm does not answer: {done.stderr.strip()}", format_command("status", stack.name))
    return parse_listed_by_partition(done.stdout)


def _measure(stack: StackHome, login: str, partition: str, nodes: Sequence[str]) -> FabricResult:
    members = hostlist(nodes)
    options = [f"--partition={partition}", f"--nodes={len(nodes)}", f"--nodelist={members}", _PAIRS]
    followed = FollowedJob(send(stack, login, stack.home.repo / JOB, [], options))
    screen.out().print(f"job [bold]{followed.job}[/bold] measures {members}")
    try:
        follow(stack, login, followed)
    except KeyboardInterrupt:
        cancel = format_command("ssh", stack.name, then=f"scancel {followed.job}")
        screen.say(f"job {followed.job} is still running; `{cancel}` cancels it")
        raise Stop("", code=INTERRUPTED) from None
    return _result(stack, login, partition, followed)


def _result(stack: StackHome, login: str, partition: str, followed: FollowedJob) -> FabricResult:
    done = _run_on_login(stack, login, f"cat {FOLDER}/fabric-{followed.job}/result.json")
    if done.returncode != 0:
        raise Stop(f"job {followed.job} ended as {followed.state} without a result, log {followed.log}", code=FAILED)
    return FabricResult(partition=partition, **json.loads(done.stdout))


def _run_on_login(stack: StackHome, login: str, script: str) -> subprocess.CompletedProcess[str]:
    try:
        return run(stack, login, script)
    except subprocess.TimeoutExpired:
        raise Stop("the login node does not answer", format_command("status", stack.name)) from None


def _conclude(stack: StackHome, results: Sequence[FabricResult], *, drain: bool) -> None:
    reasons = {node: why for result in results for node, why in result.reasons.items()}
    unclear = [f"{result.partition}: {result.unclear}" for result in results if result.unclear]
    if not reasons and not unclear:
        is_expected = all(result.is_expectation_known for result in results)
        basis = "as expected" if is_expected else "as the others; no speed of these machines is known to compare with"
        screen.print_success(f"fabric: every pair of nodes is as fast {basis}")
        return
    taken = _queue(stack).set_aside(reasons) if drain and reasons else ()
    for node, why in reasons.items():
        screen.print_failure(f"{node} {'drained' if node in taken else 'not drained'}: {why}")
    what = [*unclear, *([f"too slow: {', '.join(reasons)}"] if reasons else [])]
    raise Stop(
        "; ".join(what),
        _describe_fix(taken, replaced=isinstance(target_of_inventory(read_inventory(stack)), Launches)),
        FAILED,
    )


def _queue(stack: StackHome) -> JobQueue:
    """Return the queue of the cluster that was created; the stack file may have been changed since."""
    target, deployment = find_deployment(stack)
    target.check_access(deployment)
    return target.queue(deployment)


def _describe_fix(taken: Sequence[str], *, replaced: bool) -> str:
    if not taken:
        return ""
    if replaced:
        return "nothing to do: other machines replace them within minutes"
    return f"fix them, then as root on the controller: `scontrol update nodename={hostlist(taken)} state=resume`"
