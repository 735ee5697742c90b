"""`muster status`: print the nodes, queue, health and cost of a cluster, and the reason for each problem."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from cluster.inventory import Node
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from infra.engine import lock
from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.home import StackHome
from infra.shell import read_inventory
from infra.targets.cost import Cost
from infra.targets.facts import DAEMONS, Facts, Machine, Slurm
from infra.targets.mixins import OnThisMachine
from infra.targets.registry import read_spec, target_of
from muster.commands import last_up, screen
from muster.commands.cost import describe_cost, format_usd_per_hour
from muster.commands.stacks import require_stack
from muster.deployments import find_deployment
from slurm.control.pending_reasons import describe_reason
from slurm.hostlist import hostlist

_FINE = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
# Suffixes of sinfo for nodes that are powered down, starting, not responding and so on.
_MARKS = "*~#!%$@^-+"
_OFF, _STARTING = "off", "pending"
_JSON_FIELDS = {"name", "role", "group", "cpus", "memory_mb", "gpus", "place"}


def status(name: str, *, as_json: bool = False) -> None:
    """Print the state of a stack's cluster; raise Stop if it has problems."""
    stack = require_stack(name)
    if not stack.inventory.exists():
        _not_up(stack, as_json=as_json)
        return
    if as_json:
        print(json.dumps(_as_json(stack, gather_facts(stack)), indent=2))
        return
    with screen.status("querying the machines and the controller"):
        facts = gather_facts(stack)
    screen.out().print(f"[bold]{facts.inventory.cluster}[/bold]  stack {name}, target {facts.inventory.target}\n")
    nodes, broken = build_nodes_table(facts)
    screen.out().print(nodes, "")
    if simulated := describe_simulated_gpus(facts.nodes):
        screen.out().print(f"gpus    {simulated}", "")
    _queue(facts.slurm)
    broken += _health(stack, facts.slurm)
    if unlimited := describe_limits(facts.slurm):
        screen.out().print(f"limits  [yellow]{unlimited}[/yellow]")
    if reachable := describe_job_network(facts.slurm):
        screen.out().print(f"network [yellow]{escape(reachable)}[/yellow]")
    screen.out().print(f"cost    {_cost(stack, facts)}", markup=False)
    if broken:
        raise Stop(
            f"{format_count(len(broken), 'problem')}: {'; '.join(broken)}",
            f"`{format_command('up', name)}` repairs it; it changes only what differs",
        )


def gather_facts(stack: StackHome) -> Facts:
    """Return the state of the machines, from the target, and of Slurm, from the controller."""
    inventory = read_inventory(stack)
    target, deployment = find_deployment(stack)
    target.check_access(deployment)
    return target.facts(inventory, stack, deployment)


def judge_node(node: Node, machine: Machine, slurm: Slurm) -> tuple[str, str]:
    """Return the state of a node and its problem, empty if none: of the machine, or else of the node in Slurm."""
    if machine.state == _STARTING:
        return "starting", ""
    if machine.state not in ("running", _OFF):
        code = f" with code {machine.exit_code}" if machine.state == "exited" else ""
        return machine.state, f"{machine.kind} {machine.state}{code}"
    state, problem = _by_slurm(node, machine, slurm) if node.role == "compute" else ("up", "")
    # The cause rather than what Slurm makes of it.
    return state, machine.problem or problem


def build_nodes_table(facts: Facts) -> tuple[Table, list[str]]:
    """Return the table of nodes, and the problems, which are too long for a column."""
    placed = any(node.place for node in facts.nodes)
    heads = ("node", "role", "partition", "state", "cpus", "memory", "gpus", *(["switch"] if placed else []), "up")
    table = screen.new_table(*heads, right=["cpus", "memory", "up"], wraps=["gpus"])
    broken = []
    for node, state, why in _rows(facts):
        machine = facts.machines.get(node.name, Machine(_OFF))
        style = "red" if why else "green" if state in ("idle", "up") else "dim" if state == _OFF else "cyan"
        gpus = f"{node.gpus.count} {node.gpus.type}" if node.gpus.count else ""
        up = screen.format_duration(machine.up_s) if machine.up_s is not None else ""
        memory = f"{node.memory_mb / 1024:.1f} GiB"
        table.add_row(
            node.name,
            node.role,
            node.group or "",
            f"[{style}]{state}[/{style}]",
            str(node.cpus),
            memory,
            gpus,
            *(["/".join(node.place)] if placed else []),
            up,
        )
        broken += [f"{node.name} ({why})"] if why else []
    return table, broken


def describe_simulated_gpus(nodes: Iterable[Node]) -> str:
    """Return which nodes have GPUs that do not compute; empty if there are none."""
    names = [node.name for node in nodes if node.gpus.count and node.gpus.kind == "simulated"]
    return f"simulated on {hostlist(names)}: Slurm schedules them, but they do not compute" if names else ""


def _by_slurm(node: Node, machine: Machine, slurm: Slurm) -> tuple[str, str]:
    if slurm.problem:
        return _OFF if machine.state == _OFF else "unknown", ""
    listed = slurm.nodes.get(node.name)
    if listed is None:
        return "unknown", "not in slurm.conf"
    bad = not listed.state.rstrip(_MARKS).startswith(_FINE) or listed.state.endswith("*")
    if bad:
        return listed.state, listed.reason or "not responding"
    if machine.state == _OFF and listed.state[-1] not in _MARKS:
        return listed.state, f"{machine.kind} gone; Slurm has not noticed yet"
    return _OFF if listed.state.endswith("~") else listed.state, ""


def _rows(facts: Facts) -> Iterator[tuple[Node, str, str]]:
    """Yield each node with its state and problem; the powered-off nodes of a group share a row."""
    off: dict[str, list[Node]] = {}
    for node in facts.nodes:
        state, why = judge_node(node, facts.machines[node.name], facts.slurm)
        if state == _OFF and not why:
            off.setdefault(node.group or "", []).append(node)
        else:
            yield node, state, why
    for nodes in off.values():
        yield nodes[0].model_copy(update={"name": hostlist(node.name for node in nodes)}), _OFF, ""


def _queue(slurm: Slurm) -> None:
    if slurm.problem:
        return
    if not slurm.jobs:
        screen.out().print("queue   empty")
        return
    screen.out().print(build_queue_table(slurm), "")
    if slurm.more_jobs:
        screen.say(f"and {format_count(slurm.more_jobs, 'more job')}")


def build_queue_table(slurm: Slurm) -> Table:
    """Return the table of jobs."""
    heads = ("job", "name", "user", "partition", "state", "time", "nodes", "where or why")
    table = screen.new_table(*heads, right=["time", "nodes"], wraps=heads[-1:])
    for job in slurm.jobs:
        where = describe_reason(job.where) if job.where.startswith("(") else job.where
        cells = (job.id, job.name, job.user, job.partition, job.state.lower(), job.time, job.nodes, where)
        table.add_row(*map(escape, cells))
    return table


def _health(stack: StackHome, slurm: Slurm) -> list[str]:
    out = screen.out()
    if slurm.problem:
        out.print(f"health  [red]the controller does not answer: {escape(slurm.problem)}[/red]")
        return ["the controller does not answer"]
    down = [daemon for daemon in DAEMONS if slurm.daemons.get(daemon) != "active"]
    daemons = " ".join(
        f"[red]{d} {slurm.daemons.get(d, 'unknown')}[/red]" if d in down else f"[green]{d}[/green]" for d in DAEMONS
    )
    out.print(f"health  {daemons}")
    gate = last_up.read_last_up(stack)
    if gate is None:
        return down
    ago = screen.format_duration((datetime.now(UTC) - gate.when).total_seconds())
    verdict = {
        "ready": "[green]passed[/green]",
        "failed": "[red]failed[/red]",
        "interrupted": "[red]interrupted[/red]",
    }.get(gate.result, f"[yellow]{_describe_unfinished(stack, gate.when)}[/yellow]")
    out.print(f"gate    {verdict}, last `up` {ago} ago")
    bad = {"failed": ["the last `up` failed"], "interrupted": ["the last `up` was interrupted"]}
    return down + bad.get(gate.result, [])


def _describe_unfinished(stack: StackHome, began: datetime) -> str:
    """Return what has become of an `up` that has written no result; a later command may have the lock now."""
    if stack.home.remote:
        # The process may be another operator's.
        return "running or killed"
    return "running" if lock.is_held_since(stack, began) else "killed"


def describe_limits(slurm: Slurm) -> str:
    """Return that jobs are not limited; empty if they are, or if the controller does not answer.

    The cluster's configuration decides, not the stack file, which may have changed since the last `up`.
    """
    unlimited = slurm.tracking not in ("", "proctrack/cgroup")
    return "none: jobs can use more CPUs and memory than they requested (slurm.cgroups)" if unlimited else ""


def describe_job_network(slurm: Slurm) -> str:
    """Return that jobs can reach those of others; empty if they cannot, or if the controller does not answer.

    The controller stands for all nodes: they run the same kernel, or the same image.
    """
    if slurm.job_network in ("", "closed"):
        return ""
    if slurm.job_network == "missing":
        return "open: jobs can connect to those of other users until the next `up`"
    return f"{slurm.job_network}: jobs can connect to those of other users"


def _cost(stack: StackHome, facts: Facts) -> str:
    try:
        spec = read_spec(stack.file)
    except SpecError:
        return f"unknown: {stack.file.name} cannot be read"
    return (
        f"{describe_cost(spec)}; {describe_current_cost(spec, facts)}"
        if target_of(spec).cost(spec).lines
        else describe_cost(spec)
    )


def describe_current_cost(spec: ClusterSpec, facts: Facts) -> str:
    """Return the current cost of the nodes that have a machine, from the committed price table."""
    now, up = _current_cost(spec, facts)
    return f"{format_usd_per_hour(now)} now, with {format_count(up, 'compute node')} up"


def _current_cost(spec: ClusterSpec, facts: Facts) -> tuple[Cost, int]:
    """Return the cost of the nodes that have a machine, and the number of compute nodes among them."""
    with_machine = {name for name, machine in facts.machines.items() if machine.state in ("running", _STARTING)}
    up = Counter(node.group for node in facts.nodes if node.role == "compute" and node.name in with_machine)
    sizes = {name: {"count": up[name], "min": None, "max": None} for name in spec.groups}
    groups = {name: group.model_copy(update=sizes[name]) for name, group in spec.groups.items()}
    return target_of(spec).cost(spec.model_copy(update={"groups": groups})), up.total()


def _usd_per_hour(stack: StackHome, facts: Facts) -> dict[str, float] | None:
    """Return the cost of the whole cluster and of what is running; None if the stack file cannot be read."""
    try:
        spec = read_spec(stack.file)
    except SpecError:
        return None
    whole, now = target_of(spec).cost(spec), _current_cost(spec, facts)[0]
    amounts = {"min": whole.usd_per_hour_min, "max": whole.usd_per_hour, "now": now.usd_per_hour}
    return {name: round(amount, 4) for name, amount in amounts.items()}


def _as_json(stack: StackHome, facts: Facts) -> dict[str, Any]:
    """Return the state of a cluster as plain data."""
    last = last_up.read_last_up(stack)
    nodes = []
    for node in facts.nodes:
        state, problem = judge_node(node, facts.machines[node.name], facts.slurm)
        described = node.model_dump(mode="json", include=_JSON_FIELDS)
        nodes.append({**described, "state": state, "problem": problem})
    return {
        "stack": stack.name,
        "cluster": facts.inventory.cluster,
        "target": facts.inventory.target,
        "up": True,
        "nodes": nodes,
        "jobs": [asdict(job) for job in facts.slurm.jobs],
        "more_jobs": facts.slurm.more_jobs,
        "daemons": facts.slurm.daemons,
        "controller_problem": facts.slurm.problem,
        "last_up": asdict(last) if last else None,
        "limits": describe_limits(facts.slurm),
        "job_network": describe_job_network(facts.slurm),
        "cost": _cost(stack, facts),
        "usd_per_hour": _usd_per_hour(stack, facts),
    }


def _not_up(stack: StackHome, *, as_json: bool) -> None:
    last = last_up.read_last_up(stack)
    if as_json:
        print(json.dumps({"stack": stack.name, "up": False, "last_up": asdict(last) if last else None}, indent=2))
        return
    if last is None:
        if host := _host(stack):
            # Without its engine it is unknown whether anything of the stack exists: this raises an error.
            host.host_facts()
        screen.out().print(f"stack {stack.name} is not up")
        screen.print_next_steps([(format_command("up", stack.name), "create it")])
        return
    ended = {"failed": "failed", "interrupted": "was interrupted"}.get(last.result)
    if ended is None:
        unfinished = _describe_unfinished(stack, last.when)
        if unfinished == "running":
            screen.out().print(f"stack {stack.name} is not up yet: its `up` is running", markup=False)
            return
        ended = "was killed" if unfinished == "killed" else "is running or was killed"
    raise Stop(
        f"stack {stack.name} is not up: its last `up` {ended}",
        f"`{format_command('up', stack.name)}`; log: {stack.log('up')}",
    )


def _host(stack: StackHome) -> OnThisMachine | None:
    try:
        target = target_of(read_spec(stack.file))
    except SpecError:
        return None
    return target if isinstance(target, OnThisMachine) else None
