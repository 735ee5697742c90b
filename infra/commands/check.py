"""`muster check`: the validators, and where there is an account to ask, the pre-flight; starts nothing."""

from __future__ import annotations

from infra.commands import screen
from infra.commands.account import flight_issues
from infra.commands.cost import sentence
from infra.commands.spec import engine_facts, examined, name_is_free, on_this_machine
from infra.commands.where import existing_stack
from infra.engine.stop import BAD_INPUT, Stop
from infra.plan.aws import budget
from infra.plan.build_plan import plan
from infra.providers.problem import Problem
from infra.spec import ClusterSpec
from infra.validate import EngineFacts, render


def check(name: str) -> None:
    stack = existing_stack(name)
    engine = _facts_if_any() if on_this_machine(stack) else None
    spec, issues = examined(stack, engine)
    if spec is None:
        raise Stop(f"{stack.file.name} cannot be used\n{render(issues)}", code=BAD_INPUT)
    issues = [*issues, *(flight_issues(spec) if spec.target == "aws" else ())]
    if any(issue.level == "error" for issue in issues):
        raise Stop(
            f"{stack.file.name} is well written, but cannot be built with this account\n{render(issues)}",
            code=BAD_INPUT,
        )
    if issues:
        screen.out().print(render(issues), markup=False)
    if engine is not None:
        name_is_free(spec, name)
    if words := budget.sentence(spec):
        screen.say(words)
    screen.good(f"{stack.file.name}: cluster {spec.name}, {_nodes(spec)}, {sentence(spec)}")


def _nodes(spec: ClusterSpec) -> str:
    built = plan(spec)
    there = len(built.nodes) + sum(part.static for part in built.sets)
    more = sum(part.count - part.static for part in built.sets)
    return f"{there} {'node' if there == 1 else 'nodes'}" + (f" and up to {more} more" if more else "")


def _facts_if_any() -> EngineFacts | None:
    try:
        return engine_facts()
    except Problem:
        screen.say("no Docker engine answers: what this machine can hold is not checked")
        return None
