"""`muster check`: the validators alone; starts nothing."""

from __future__ import annotations

from infra.commands import screen
from infra.commands.spec import engine_facts, examined, name_is_free
from infra.commands.where import existing_stack
from infra.engine.stop import BAD_INPUT, Stop
from infra.plan.build_plan import plan
from infra.providers.problem import Problem
from infra.validate import EngineFacts, render


def check(name: str) -> None:
    stack = existing_stack(name)
    engine = _facts_if_any()
    spec, issues = examined(stack, engine)
    if spec is None:
        raise Stop(f"{stack.file.name} cannot be used\n{render(issues)}", code=BAD_INPUT)
    if issues:
        screen.out().print(render(issues), markup=False)
    if engine is not None:
        name_is_free(spec, name)
    screen.good(f"{stack.file.name}: cluster {spec.name}, {len(plan(spec).nodes)} nodes")


def _facts_if_any() -> EngineFacts | None:
    try:
        return engine_facts()
    except Problem:
        screen.say("no Docker engine answers: what this machine can hold is not checked")
        return None
