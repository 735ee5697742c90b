"""`muster check`: validate stack files, and run the pre-flight checks if an account is available; starts nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import render
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.targets.mixins import Budgeted, Flight, HostFacts, OnThisMachine, Preflight
from infra.targets.registry import target_of
from infra.targets.target import Console
from muster.commands import screen
from muster.commands.cost import describe_cost
from muster.commands.stack_spec import (
    check_name_free,
    describe_machines,
    examine_spec,
    find_host_target,
    name_stack_in_issues,
)
from muster.commands.stacks import require_stack_file


@dataclass(frozen=True)
class _CheckResult:
    """What `check` knows about a stack file."""

    stack: StackHome
    spec: ClusterSpec | None
    """None if it is invalid."""
    issues: list[Issue]
    flight: Flight | None
    """The result of the pre-flight; None if there was none."""

    @property
    def is_valid(self) -> bool:
        return self.spec is not None and not any(issue.level == "error" for issue in self.issues)


def check(name: str, *, as_json: bool = False) -> None:
    """Print the errors of a stack file, or what it describes and its cost; raise Stop if it is invalid."""
    if as_json:
        result = _examine(name, screen.get_quiet_console())
        print(json.dumps(_as_json(result), indent=2))
        if not result.is_valid:
            raise Stop("", code=BAD_INPUT)
        return
    _print(_examine(name, screen))


def check_files(paths: Sequence[Path], *, as_json: bool = False) -> None:
    """Check several stack files, for hooks: report each, and raise Stop if any is invalid."""
    results, failed = [], False
    for path in paths:
        name = re.fullmatch(r"Pulumi\.(.+)\.yaml", path.name)
        if name is None:
            message = f"{path}: '{path.name}' is not the name of a stack file; allowed: Pulumi.NAME.yaml"
            screen.print_stop(Stop(message, "rename it to `Pulumi.NAME.yaml`, or use `--stack NAME`"))
            failed = True
            continue
        os.environ["MUSTER_STACKS"] = str(path.resolve().parent)
        try:
            if as_json:
                results.append(_examine(name[1], screen.get_quiet_console()))
            else:
                check(name[1])
        except Stop as stop:
            screen.print_stop(stop)
            failed = True
    if as_json:
        print(json.dumps([_as_json(result) for result in results], indent=2))
    if failed or not all(result.is_valid for result in results):
        raise Stop("", code=BAD_INPUT)


def _examine(name: str, console: Console) -> _CheckResult:
    """Validate a stack file, on this machine and in the account if they are available."""
    stack = require_stack_file(name)
    host = find_host_target(stack)
    host_facts = _facts_if_any(host, console) if host else None
    spec, issues = examine_spec(stack, host_facts)
    target = target_of(spec) if spec else None
    flight = target.preflight(spec, issues, stack, console) if spec and isinstance(target, Preflight) else None
    result = _CheckResult(stack, spec, name_stack_in_issues(flight.issues if flight else issues, name), flight)
    if spec and result.is_valid and host_facts is not None:
        check_name_free(spec, name)
    return result


def _print(result: _CheckResult) -> None:
    stack, spec, flight = result.stack, result.spec, result.flight
    if spec is None or not result.is_valid:
        what = _describe_refusal(spec) if flight else "is invalid"
        raise Stop(f"{stack.file.name} {what}\n{render(result.issues)}", code=BAD_INPUT)
    target = target_of(spec)
    if result.issues:
        screen.out().print(render(result.issues), markup=False)
    if isinstance(target, Preflight) and flight is None:
        screen.say(target.not_checked)
    if isinstance(target, Budgeted) and (note := target.budget_note(spec)):
        screen.say(note)
    price = describe_cost(spec, flight.quote.cost if flight and flight.quote else None)
    screen.print_success(f"{stack.file.name}: cluster {spec.name}, {describe_machines(target.plan(spec))}, {price}")


def _describe_refusal(spec: ClusterSpec | None) -> str:
    target = target_of(spec) if spec else None
    return f"is valid, but {target.refusal}" if isinstance(target, Preflight) else "is invalid"


def _as_json(result: _CheckResult) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "file": str(result.stack.file),
        "valid": result.is_valid,
        "account_checked": result.flight is not None,
        "issues": [asdict(issue) for issue in result.issues],
    }


def _facts_if_any(host: OnThisMachine, console: Console) -> HostFacts | None:
    try:
        return host.host_facts()
    except ResourceError as error:
        console.say(f"the capacity of this machine is not checked: {error}")
        return None
