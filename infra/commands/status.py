"""`muster status`: nodes, queue, health and cost. What is broken is a red row with the reason."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.markup import escape
from rich.table import Table

from infra.commands import cluster_facts, outcome, screen
from infra.commands.cluster_facts import DAEMONS, Facts, Machine, Slurm
from infra.commands.cost import sentence
from infra.commands.where import known_stack
from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.home import StackHome
from infra.inventory import Node
from infra.providers import engine_client
from infra.spec.issue import SpecError
from infra.spec.load import read

_FINE = ("idle", "mixed", "allocated", "completing", "planned", "reserved")


def status(name: str) -> None:
    stack = known_stack(name)
    if not stack.inventory.exists():
        _not_up(stack)
        return
    with screen.out().status("asking Docker and the controller"):
        facts = cluster_facts.gather(stack)
    screen.out().print(f"[bold]{facts.inventory.cluster}[/bold]  stack {name}, target {facts.inventory.target}\n")
    nodes, broken = nodes_table(facts)
    screen.out().print(nodes, "")
    _queue(facts.slurm)
    broken += _health(stack, facts.slurm)
    screen.out().print(f"cost    {_cost(stack)}", markup=False)
    if broken:
        raise Stop(
            f"{_things(len(broken))} wrong: {'; '.join(broken)}",
            f"`{typed('up', name)}` puts it right; it changes only what differs",
        )


def node_state(node: Node, machine: Machine, slurm: Slurm) -> tuple[str, str]:
    """(state, why it is bad): the machine first, then what Slurm says of it."""
    if machine.state != "running":
        code = f" with code {machine.exit_code}" if machine.state == "exited" else ""
        return machine.state, f"container {machine.state}{code}"
    if node.role != "compute":
        return "up", ""
    if slurm.problem:
        return "unknown", ""
    known = slurm.nodes.get(node.name)
    if known is None:
        return "unknown", "not in slurm.conf"
    bad = not known.state.rstrip("*~#!%$@^-+").startswith(_FINE) or known.state.endswith("*")
    return known.state, known.reason or "not responding" if bad else ""


def nodes_table(facts: Facts) -> tuple[Table, list[str]]:
    """The table, and what is broken and why: reasons are sentences, too long for a column."""
    heads = ("node", "role", "partition", "state", "cpus", "memory", "gpus", "up")
    table = screen.table(*heads, right=["cpus", "memory", "up"])
    broken = []
    for node in facts.inventory.nodes:
        machine = facts.machines[node.name]
        state, why = node_state(node, machine, facts.slurm)
        style = "red" if why else "green" if state in ("idle", "up") else "cyan"
        gpus = (
            f"{node.gpus.count} {node.gpus.type}{' (simulated)' if node.gpus.kind == 'simulated' else ''}"
            if node.gpus.count
            else ""
        )
        up = screen.duration(machine.up_s) if machine.up_s is not None else ""
        memory = f"{node.memory_mb / 1024:.1f} GiB"
        table.add_row(
            node.name,
            node.role,
            node.group or "",
            f"[{style}]{state}[/{style}]",
            str(node.cpus),
            memory,
            gpus,
            up,
        )
        broken += [f"{node.name} ({why})"] if why else []
    return table, broken


def _queue(slurm: Slurm) -> None:
    if slurm.problem:
        return
    if not slurm.jobs:
        screen.out().print("queue   empty")
        return
    screen.out().print(queue_table(slurm), "")


def queue_table(slurm: Slurm) -> Table:
    heads = ("job", "name", "user", "partition", "state", "time", "nodes", "where or why")
    table = screen.table(*heads, right=["time", "nodes"], wraps=heads[-1:])
    for job in slurm.jobs:
        cells = (job.id, job.name, job.user, job.partition, job.state.lower(), job.time, job.nodes, job.where)
        table.add_row(*map(escape, cells))
    return table


def _health(stack: StackHome, slurm: Slurm) -> list[str]:
    out = screen.out()
    if slurm.problem:
        out.print(f"health  [red]the controller cannot be asked: {slurm.problem}[/red]")
        return ["the controller does not answer"]
    down = [daemon for daemon in DAEMONS if slurm.daemons.get(daemon) != "active"]
    words = " ".join(
        f"[red]{d} {slurm.daemons.get(d, 'unknown')}[/red]" if d in down else f"[green]{d}[/green]" for d in DAEMONS
    )
    out.print(f"health  {words}")
    gate = outcome.read(stack)
    if gate is None:
        return down
    ago = screen.duration((datetime.now(UTC) - gate.when).total_seconds())
    said = {
        "ready": "[green]passed[/green]",
        "failed": "[red]failed[/red]",
        "interrupted": "[red]interrupted[/red]",
    }.get(gate.result, "[yellow]running or killed[/yellow]")
    out.print(f"gate    {said}, last `up` {ago} ago")
    bad = {"failed": ["the last `up` failed"], "interrupted": ["the last `up` was interrupted"]}
    return down + bad.get(gate.result, [])


def _cost(stack: StackHome) -> str:
    try:
        return sentence(read(stack.file))
    except SpecError:
        return f"unknown: {stack.file.name} cannot be read"


def _things(number: int) -> str:
    return "1 thing is" if number == 1 else f"{number} things are"


def _not_up(stack: StackHome) -> None:
    last = outcome.read(stack)
    if last is None:
        engine_client.connect()
        screen.out().print(f"stack {stack.name} is not up")
        screen.next_steps([(typed("up", stack.name), "create it")])
        return
    ended = {"failed": "failed", "interrupted": "was interrupted"}.get(last.result, "did not end")
    raise Stop(
        f"stack {stack.name} is not up: its last `up` {ended}", f"`{typed('up', stack.name)}`; log: {stack.log('up')}"
    )
