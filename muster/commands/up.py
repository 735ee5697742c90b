"""`muster up`: checks the spec, runs Pulumi, shows each node on its way, and says in one block what went wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from cluster.spec import ClusterSpec
from infra.engine import lock, pulumi
from infra.engine.environment import How
from infra.engine.events import Failure, Result
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.engine.typed import retyped, typed
from infra.home import StackHome
from infra.plan import BuildPlan, plan
from infra.targets.aws import account
from infra.targets.aws import plugin as aws_plugin
from infra.targets.aws.priced import Priced, by_table
from infra.targets.aws.refusals import way_on
from infra.targets.aws.state import made
from muster.commands import outcome, screen
from muster.commands.cost import sentence
from muster.commands.outcome import Outcome
from muster.commands.sizes import always, machines
from muster.commands.spec import engine_facts, examined, name_is_free, on_this_machine, usable
from muster.commands.watch import nodes_table, watching
from muster.commands.where import existing_stack

# Pulumi's whole message after a Ctrl-C.
_CANCELLED = "update canceled"


def up(name: str, *, force: bool, wait: bool, preflight: bool = True) -> Outcome:
    stack = existing_stack(name)
    spec, issues = examined(stack, engine_facts() if on_this_machine(stack) else None)
    how = How(force=force)
    flight = None
    if spec and spec.target == "aws":
        flight = account.cleared(spec, issues, made(stack.state), preflight=preflight)
        issues, how = flight.issues, How(force=force, budget_judged=flight.by_todays_prices)
    spec = usable(stack, spec, issues)
    name_is_free(spec, name)
    if flight:
        screen.say(price_line(name, spec, flight.priced))
        aws_plugin.ensure(stack.home, screen.say)
    with lock.held(stack, "up", wait=wait, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=wait, say=screen.say)
        return _run(stack, plan(spec), held, how)


def _run(stack: StackHome, built: BuildPlan, held: int, how: How) -> Outcome:
    began, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    outcome.write(stack, Outcome("running", at))
    try:
        with watching(always(built), stack.progress) as watcher:
            code, result = pulumi.up(stack, pulumi.Caller(held, watcher.tick, watcher.say), how)
    except KeyboardInterrupt:
        outcome.write(stack, Outcome("interrupted", at, round(time.monotonic() - began, 1)))
        raise interrupted(stack) from None
    seconds = time.monotonic() - began
    phases = {name: round(phase.seconds, 1) for name, phase in watcher.board.phases.items()}
    word = "ready" if not code else "interrupted" if _was_cancelled(result) else "failed"
    created = result.created and "machines" in phases
    ended = Outcome(word, at, round(seconds, 1), result.changed, phases, created)
    outcome.write(stack, ended)
    if code:
        raise failed(stack, result)
    if not result.changed:
        screen.good(f"nothing to change: {machines(built)} as described ({seconds:.1f} s)")
        return ended
    watcher.board.finish()
    if watcher.board.phases and screen.out().is_terminal:
        screen.out().print(nodes_table(watcher.board, time.time(), screen.out().size.height))
    screen.good(f"ready: {machines(built)} in {seconds:.1f} s")
    return ended


def price_line(name: str, spec: ClusterSpec, priced: Priced | None) -> str:
    """Said before anything is made; by the dated table where no budget asked for today's prices."""
    known = priced or by_table(spec, "were not asked for")
    return f"{sentence(spec, known.cost)} ({known.source}); `{typed('cost', name)}` shows each part"


def what_next(name: str) -> list[tuple[str, str]]:
    return [
        (typed("ssh", name), "a shell on the login node"),
        (typed("submit", name, "JOB=slurm/jobs/smoke.sbatch"), "run a job, follow its log"),
        (typed("status", name), "nodes, queue, health"),
        (typed("teardown", name), "remove everything, with a receipt"),
    ]


def failed(stack: StackHome, result: Result) -> Stop:
    if _was_cancelled(result):
        return interrupted(stack)
    head = f"up failed: {_count(result.failures)}"
    blocks = [retyped(_block(failure, typed("up", stack.name)), stack.name) for failure in result.failures]
    return Stop("\n".join([head, *blocks, f"everything Pulumi said: {stack.log('up')}"]), code=FAILED)


def interrupted(stack: StackHome) -> Stop:
    on, away = typed("up", stack.name), typed("teardown", stack.name)
    return Stop("up was interrupted", f"`{on}` goes on from here, `{away}` removes what exists", INTERRUPTED)


def _was_cancelled(result: Result) -> bool:
    """What a step that was cut short complains of says nothing about the cluster."""
    return any(failure.message == _CANCELLED for failure in result.failures)


def _count(failures: tuple[Failure, ...]) -> str:
    names = sorted({failure.resource for failure in failures if failure.resource})
    return ", ".join(names) if names else "the program stopped"


def _block(failure: Failure, again: str) -> str:
    said = way_on(failure.message, again)
    whole = f"{failure.message} Fix: {said}" if said else failure.message
    text = whole.replace(" Log: ", "\nlog: ").replace(" Fix: ", "\nfix: ")
    return "\n".join(f"  {line}" for line in text.splitlines())
