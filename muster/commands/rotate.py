"""`muster rotate keys`: replace the Slurm key of a running cluster; running and queued jobs are kept.

The key that nodes must have is in Pulumi's state, and `up` applies it. So each step of a rotation is a run of `up`, and
one that was interrupted goes on from the state.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from cluster.spec import ClusterSpec
from infra.engine import pulumi
from infra.engine.access_restore import unwrap_secret
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.mixins import RotatesKeys
from infra.targets.registry import parse_spec, target_of, targets
from infra.validate.update import changes
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_running_stack
from muster.commands.up import up
from muster.commands.upgrade import read_spec_text
from slurm.config.auth_key import STEPS, RotationStep, find_next_step

COMMAND = "rotate keys"
_SECRETS = ":ClusterSecrets"


def rotate_keys(name: str, *, wait: bool = False) -> None:
    """Replace the Slurm key of a running stack, or finish a rotation that was interrupted."""
    stack = require_running_stack(name)
    resources = pulumi.resources(stack)
    spec = parse_spec(read_spec_text(resources, name))
    target = require_rotation(name, spec)
    _require_no_change(stack, spec)
    began, steps = time.monotonic(), list_steps(stack, resources)
    if not is_new(steps):
        screen.say("a rotation was interrupted: it goes on where it stopped")
        # The nodes may not have what the state says: the run that changed it may have failed.
        _run_step(stack, "", steps[0] if steps else "drop", wait=wait)
        target.wait_for_launched_nodes(spec, stack, screen)
    for step in steps:
        screen.out().print(f"step {_number(step)} of {len(STEPS)}: {STEPS[step]}", markup=False)
        stack.rotation_mark.write_text(step)
        _run_step(stack, step, step, wait=wait)
        target.wait_for_launched_nodes(spec, stack, screen)
    stack.rotation_mark.unlink(missing_ok=True)
    screen.print_success(f"stack {name} has a new Slurm key; the old one is refused ({time.monotonic() - began:.0f} s)")


def continue_rotation(name: str, *, wait: bool = False) -> None:
    """Finish a rotation that was interrupted; do not start one if it had not begun, or if the cluster is another."""
    stack = require_running_stack(name)
    if is_new(list_steps(stack, pulumi.resources(stack))):
        stack.rotation_mark.unlink(missing_ok=True)
    else:
        rotate_keys(name, wait=wait)


def list_steps(stack: StackHome, resources: list[dict[str, Any]]) -> list[RotationStep]:
    """Return the steps that are left: those that the state does not have yet; all of them if none is under way.

    After the last step the state is that of a cluster that is not rotated. That the nodes may not have this step yet,
    only the mark of this machine tells; without it, a new rotation gives it to them just as well.
    """
    step = read_next_step(resources, stack.name)
    if step == "accept" and stack.rotation_mark.exists() and stack.rotation_mark.read_text() == "drop":
        return []
    return list(STEPS)[_number(step) - 1 :]


def is_new(steps: list[RotationStep]) -> bool:
    """Return whether these are the steps of a rotation that has not begun."""
    return steps == list(STEPS)


def require_rotation(name: str, spec: ClusterSpec) -> RotatesKeys:
    """Return the target of a stack; raise Stop if it cannot rotate keys."""
    target = target_of(spec)
    if isinstance(target, RotatesKeys):
        return target
    able = ", ".join(sorted(other.name for other in targets().values() if isinstance(other, RotatesKeys)))
    what = f"stack {name} has target {target.name}, which cannot rotate keys; allowed: {able}"
    raise Stop(what, "create the cluster again: it then has other keys", BAD_INPUT)


def read_next_step(resources: list[dict[str, Any]], stack: str) -> RotationStep:
    """Return the next step of the rotation that the state is in; `accept` if there is none."""
    for resource in resources:
        if resource["type"].endswith(_SECRETS) and "slurm_key" in resource.get("outputs", {}):
            return find_next_step(base64.b64decode(unwrap_secret(resource["outputs"]["slurm_key"])))
    raise Stop("the stack has no cluster yet", format_command("up", stack))


def _require_no_change(stack: StackHome, spec: ClusterSpec) -> None:
    """Raise Stop if the stack file differs from the cluster: each step would apply it."""
    written = require_valid_spec(stack, *examine_spec(stack, None))
    if paths := [change.path for change in changes(spec, written)]:
        what = f"{stack.file.name} has changes that the cluster does not have: {', '.join(paths)}"
        fix = f"apply them with `{format_command('up', stack.name)}`, or undo them, then rotate the keys"
        raise Stop(what, fix, BAD_INPUT)


def _run_step(stack: StackHome, step: str, shown: RotationStep, *, wait: bool) -> None:
    try:
        up(stack.name, force=False, wait=wait, preflight=False, rotation=step, command="rotate keys")
    except Stop as stop:
        raise Stop(f"{stop.what}\n{describe_interruption(shown)}", _describe_fix(stop, stack.name), stop.code) from None


def describe_interruption(step: RotationStep) -> str:
    """Return what a rotation that stopped at a step means for the cluster."""
    return (
        f"the rotation stopped at step {_number(step)} of {len(STEPS)}: {STEPS[step]}. "
        "Jobs go on, because nodes before and after this step accept each other; the old key is still valid"
    )


def _describe_fix(stop: Stop, name: str) -> str:
    again = f"`{format_command(COMMAND, name)}` continues"
    return f"{stop.fix}; then {again}" if stop.fix else f"remove the cause; {again}"


def _number(step: RotationStep) -> int:
    return list(STEPS).index(step) + 1
