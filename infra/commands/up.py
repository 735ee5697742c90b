"""`muster up`: checks the spec, runs Pulumi, shows each node on its way, and says in one block what went wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from infra.commands import outcome, screen
from infra.commands.outcome import Outcome
from infra.commands.spec import engine_facts, valid_spec
from infra.commands.watch import nodes_table, watching
from infra.commands.where import existing_stack
from infra.engine import lock, pulumi
from infra.engine.events import Failure, Result
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.home import StackHome
from infra.plan.build_plan import plan

# Pulumi's whole message after a Ctrl-C.
_CANCELLED = "update canceled"


def up(name: str, *, force: bool, wait: bool) -> Outcome:
    stack = existing_stack(name)
    spec = valid_spec(stack, engine_facts())
    nodes = [node.name for node in plan(spec).nodes]
    with lock.held(stack, "up", wait=wait, say=screen.say) as held:
        pulumi.wait_for_others(stack, wait=wait, say=screen.say)
        return _run(stack, nodes, held, force=force)


def _run(stack: StackHome, nodes: list[str], held: int, *, force: bool) -> Outcome:
    began, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    outcome.write(stack, Outcome("running", at))
    with watching(nodes, stack.progress) as watcher:
        code, result = pulumi.up(stack, pulumi.Caller(held, watcher.tick, watcher.say), force=force)
    seconds = time.monotonic() - began
    phases = {name: round(phase.seconds, 1) for name, phase in watcher.board.phases.items()}
    ended = Outcome("failed" if code else "ready", at, round(seconds, 1), result.changed, phases)
    outcome.write(stack, ended)
    if code:
        raise failed(stack, result)
    if not result.changed:
        screen.good(f"nothing to change: {len(nodes)} nodes are as described ({seconds:.1f} s)")
        return ended
    watcher.board.finish()
    if watcher.board.phases and screen.out().is_terminal:
        screen.out().print(nodes_table(watcher.board, time.time(), screen.out().size.height))
    screen.good(f"ready: {len(nodes)} nodes in {seconds:.1f} s")
    return ended


def what_next(name: str) -> list[tuple[str, str]]:
    stack = "" if name == "local" else f" STACK={name}"
    return [
        (f"make ssh{stack}", "a shell on the login node"),
        (f"make submit JOB=slurm/jobs/smoke.sbatch{stack}", "run a job, follow its log"),
        (f"make status{stack}", "nodes, queue, health"),
        (f"make teardown{stack}", "remove everything, with a receipt"),
    ]


def failed(stack: StackHome, result: Result) -> Stop:
    if {failure.message for failure in result.failures} == {_CANCELLED}:
        return Stop(
            "up was stopped", "`muster up` goes on from here, `muster teardown` removes what exists", INTERRUPTED
        )
    head = f"up failed: {_count(result.failures)}"
    blocks = [_block(failure) for failure in result.failures]
    return Stop("\n".join([head, *blocks, f"everything Pulumi said: {stack.log('up')}"]), code=FAILED)


def _count(failures: tuple[Failure, ...]) -> str:
    names = sorted({failure.resource for failure in failures if failure.resource})
    return ", ".join(names) if names else "the program stopped"


def _block(failure: Failure) -> str:
    text = failure.message.replace(" Log: ", "\nlog: ").replace(" Fix: ", "\nfix: ")
    return "\n".join(f"  {line}" for line in text.splitlines())
