"""`muster check`: the validators, and where there is an account to ask, the pre-flight; starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from infra.engine.stop import BAD_INPUT, Stop
from infra.plan import plan
from infra.resources.problem import Problem
from infra.targets.aws.account import NONE, looked_at
from infra.targets.aws.plan import budget
from infra.targets.aws.state import made
from infra.validate import EngineFacts, render
from muster.commands import screen
from muster.commands.cost import sentence
from muster.commands.sizes import machines
from muster.commands.spec import engine_facts, examined, name_is_free, on_this_machine
from muster.commands.where import existing_stack


def check(name: str) -> None:
    stack = existing_stack(name)
    engine = _facts_if_any() if on_this_machine(stack) else None
    spec, issues = examined(stack, engine)
    flight = looked_at(spec, issues, made(stack.state)) if spec and spec.target == "aws" else None
    issues = flight.issues if flight else issues
    if spec is None or any(issue.level == "error" for issue in issues):
        what = "is well written, but cannot be built with this account" if flight else "cannot be used"
        raise Stop(f"{stack.file.name} {what}\n{render(issues)}", code=BAD_INPUT)
    if issues:
        screen.out().print(render(issues), markup=False)
    if spec.target == "aws" and flight is None:
        screen.say(f"{NONE}: quotas, zones, capacity, images, rights and today's prices are not checked")
    if engine is not None:
        name_is_free(spec, name)
    if words := budget.sentence(spec):
        screen.say(words)
    price = sentence(spec, flight.priced.cost if flight and flight.priced else None)
    screen.good(f"{stack.file.name}: cluster {spec.name}, {machines(plan(spec))}, {price}")


def check_files(paths: Sequence[Path]) -> None:
    """Check several stack files, for hooks; report every one and fail if any is invalid."""
    failed = 0
    for path in paths:
        name = re.fullmatch(r"Pulumi\.(.+)\.yaml", path.name)
        if name is None:
            message = f"{path}: '{path.name}' is not the name of a stack file; allowed: Pulumi.NAME.yaml"
            raise Stop(message, code=BAD_INPUT)
        os.environ["MUSTER_STACKS"] = str(path.resolve().parent)
        try:
            check(name[1])
        except Stop as stop:
            screen.stopped(stop)
            failed += 1
    if failed:
        raise Stop("", code=BAD_INPUT)


def _facts_if_any() -> EngineFacts | None:
    try:
        return engine_facts()
    except Problem:
        screen.say("no Docker engine answers: what this machine can hold is not checked")
        return None
