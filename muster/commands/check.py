"""`muster check`: validate stack files, and run the pre-flight checks if an account is available; starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cluster.spec.issue import render
from infra.engine.stop import BAD_INPUT, Stop
from infra.resources.error import ResourceError
from infra.targets.registry import target_of
from infra.targets.target import Budgeted, HostFacts, OnThisMachine, Preflight
from muster.commands import screen
from muster.commands.cost import describe_cost
from muster.commands.stack_spec import check_name_free, describe_machines, examine_spec, find_host_target
from muster.commands.stacks import require_stack_file


def check(name: str) -> None:
    """Print the errors of a stack file, or what it describes and its cost."""
    stack = require_stack_file(name)
    host = find_host_target(stack)
    host_facts = _facts_if_any(host) if host else None
    spec, issues = examine_spec(stack, host_facts)
    target = target_of(spec) if spec else None
    flight = target.preflight(spec, issues, stack, screen) if spec and isinstance(target, Preflight) else None
    issues = flight.issues if flight else issues
    if spec is None or target is None or any(issue.level == "error" for issue in issues):
        what = "is valid, but this account cannot create it" if flight else "is invalid"
        raise Stop(f"{stack.file.name} {what}\n{render(issues)}", code=BAD_INPUT)
    if issues:
        screen.out().print(render(issues), markup=False)
    if isinstance(target, Preflight) and flight is None:
        screen.say(target.not_checked)
    if host_facts is not None:
        check_name_free(spec, name)
    if isinstance(target, Budgeted) and (note := target.budget_note(spec)):
        screen.say(note)
    price = describe_cost(spec, flight.quote.cost if flight and flight.quote else None)
    screen.print_success(f"{stack.file.name}: cluster {spec.name}, {describe_machines(target.plan(spec))}, {price}")


def check_files(paths: Sequence[Path]) -> None:
    """Check several stack files, for hooks: report each, and fail if any is invalid."""
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
            screen.print_stop(stop)
            failed += 1
    if failed:
        raise Stop("", code=BAD_INPUT)


def _facts_if_any(host: OnThisMachine) -> HostFacts | None:
    try:
        return host.host_facts()
    except ResourceError as error:
        screen.say(f"the capacity of this machine is not checked: {error}")
        return None
