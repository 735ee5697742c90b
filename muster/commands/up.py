"""`muster up`: validate the spec, run Pulumi, show the progress of each node, and summarize failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from cluster.spec import ClusterSpec
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.environment import RunOptions
from infra.engine.events import Failure, Result
from infra.engine.folder_owner import claim_folder, record_owner
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.home import StackHome
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.cost import Quote
from infra.targets.mixins import HostFacts, Preflight, RotatesKeys
from infra.targets.registry import target_of
from infra.targets.target import Target
from muster.commands import last_up, screen
from muster.commands.cost import describe_cost
from muster.commands.last_up import LastUp
from muster.commands.progress import build_nodes_table, show_progress
from muster.commands.stack_spec import (
    check_name_free,
    describe_machines,
    examine_spec,
    find_host_target,
    list_permanent_nodes,
    require_valid_spec,
)
from muster.commands.stacks import require_stack_file

# The message of Pulumi after Ctrl-C.
_CANCELLED = "update canceled"


def up(  # noqa: PLR0913  # each is an option of its own
    name: str,
    *,
    force: bool,
    wait: bool,
    preflight: bool = True,
    rotation: str = "",
    launched: bool = False,
    command: str = "up",
) -> LastUp:
    """Create or update the cluster of a stack and return the result; raise Stop if it fails.

    `rotation` is a step of a rotation of the Slurm key that is taken at the same time. With `launched`, running nodes
    that Slurm launched are updated too. `command` is what the user typed, for others who wait for its lock.
    """
    stack = require_stack_file(name)
    spec, issues = examine_spec(stack, _query_host(stack))
    options = RunOptions(force=force, rotation=rotation)
    flight = None
    if spec and isinstance(preflighted := target_of(spec), Preflight):
        flight = preflighted.clear(spec, issues, stack, screen, full=preflight)
        issues, options = flight.issues, replace(options, budget_checked=flight.by_todays_prices)
    spec = require_valid_spec(stack, spec, issues)
    target = target_of(spec)
    check_name_free(spec, name)
    if flight and target.capabilities.rents_machines:
        screen.say(describe_price(name, target, spec, flight.quote))
    target.prepare(stack.home, screen)
    with lock.held(stack, command, wait=wait, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=wait, say=screen.say)
        # Another command may have claimed it before this one had the lock.
        claim_folder(stack)
        record_owner(stack)
        with report_retries(stack, target):
            ended = _run(stack, target, built := target.plan(spec), held, options)
            if launched:
                _update_launched_nodes(stack, target, spec, built)
            return ended


@contextmanager
def report_retries(stack: StackHome, target: Target) -> Iterator[None]:
    """Print how long retries took when a block ends or fails; those of earlier runs do not count."""
    stack.progress.unlink(missing_ok=True)
    try:
        yield
    finally:
        if retries := target.describe_retries(stack):
            screen.say(retries)


def _query_host(stack: StackHome) -> HostFacts | None:
    """Return the facts about this machine if the nodes run on it; raise ResourceError if its engine does not answer.

    Errors of the stack file are reported first: they can be fixed without the engine.
    """
    host = find_host_target(stack)
    try:
        return host.host_facts() if host else None
    except ResourceError:
        require_valid_spec(stack, *examine_spec(stack, None))
        raise


def _run(stack: StackHome, target: Target, built: BuildPlan, held: int, options: RunOptions) -> LastUp:
    began, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    last_up.write_last_up(stack, LastUp("running", at))
    try:
        with show_progress(list_permanent_nodes(built), stack.progress) as watcher:
            code, result = pulumi.up(stack, pulumi.Caller(held, watcher.tick, watcher.say), options)
    except KeyboardInterrupt:
        last_up.write_last_up(stack, LastUp("interrupted", at, round(time.monotonic() - began, 1)))
        raise build_interruption(stack) from None
    seconds = time.monotonic() - began
    phases = {name: round(phase.seconds, 1) for name, phase in watcher.board.phases.items()}
    word = "ready" if not code else "interrupted" if _was_cancelled(result) else "failed"
    created = result.created and "machines" in phases
    ended = LastUp(word, at, round(seconds, 1), result.changed, phases, created)
    last_up.write_last_up(stack, ended)
    if code:
        raise build_failure(stack, target, result)
    if not result.changed:
        screen.print_success(f"nothing to change: {describe_machines(built)} match the stack file ({seconds:.1f} s)")
        return ended
    watcher.board.finish()
    if watcher.board.phases and screen.out().is_terminal:
        screen.out().print(build_nodes_table(watcher.board, time.time(), screen.out().size.height))
    screen.print_success(f"ready: {describe_machines(built)} in {seconds:.1f} s")
    return ended


def _update_launched_nodes(stack: StackHome, target: Target, spec: ClusterSpec, built: BuildPlan) -> None:
    """Let the nodes that Slurm launched before this `up` apply it; an interrupted one is continued by the next."""
    if not isinstance(target, RotatesKeys) or all(nodes.count == nodes.static for nodes in built.sets):
        return
    try:
        target.wait_for_launched_nodes(spec, stack, screen, starting=False)
    except KeyboardInterrupt:
        raise build_interruption(stack) from None


def describe_price(name: str, target: Target, spec: ClusterSpec, quote: Quote | None) -> str:
    """Return the line with the price that is printed before anything is created.

    Without a budget, current prices are not queried, and the price is from the committed price table.
    """
    cost = quote.cost if quote else target.cost(spec)
    source = (
        quote.source
        if quote
        else f"instance prices of {cost.priced_on}, {target.region(spec)}; today's prices were not queried"
    )
    return f"{describe_cost(spec, cost)} ({source}); `{format_command('cost', name)}` shows each part"


def list_next_steps(name: str) -> list[tuple[str, str]]:
    """Return the commands to run after `up`, each with its description."""
    return [
        (format_command("ssh", name), "a shell on the login node"),
        (format_command("submit", name, "JOB=slurm/jobs/smoke.sbatch"), "run a job, follow its log"),
        (format_command("status", name), "nodes, queue, health"),
        (format_command("teardown", name), "remove everything, with a receipt"),
    ]


def build_failure(stack: StackHome, target: Target, result: Result) -> Stop:
    """Return the error for a failed `up`, with one block for each failed resource."""
    if _was_cancelled(result):
        return build_interruption(stack)
    head = f"up failed: {_count(result.failures)}"
    blocks = [
        rewrite_commands(_block(target, failure, format_command("up", stack.name)), stack.name)
        for failure in result.failures
    ]
    return Stop("\n".join([head, *blocks, f"full log of Pulumi: {stack.log('up')}"]), code=FAILED)


def build_interruption(stack: StackHome) -> Stop:
    """Return the error for an interrupted `up`."""
    again, remove = format_command("up", stack.name), format_command("teardown", stack.name)
    return Stop("up was interrupted", f"`{again}` continues, `{remove}` removes what exists", INTERRUPTED)


def _was_cancelled(result: Result) -> bool:
    """Tell whether `up` was interrupted; other failures are then only its consequences."""
    return any(failure.message == _CANCELLED for failure in result.failures)


def _count(failures: tuple[Failure, ...]) -> str:
    names = sorted({failure.resource for failure in failures if failure.resource})
    return ", ".join(names) if names else "the program stopped"


def _block(target: Target, failure: Failure, again: str) -> str:
    fix = "" if " Fix: " in failure.message else target.explain_failure(failure.message, again)
    whole = f"{failure.message} Fix: {fix}" if fix else failure.message
    text = whole.replace(" Log: ", "\nlog: ").replace(" Fix: ", "\nfix: ")
    return "\n".join(f"  {line}" for line in text.splitlines())
