"""`muster rehearse`: create, use and remove a stack's cluster in a simulated cloud on this machine."""

from __future__ import annotations

import time

from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.registry import target_of, targets
from infra.targets.target import RehearsalOptions, Rehearses
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_stack_file


def rehearse(name: str, *, seed: int, speed: float, nodes: int = 2) -> None:
    """Rehearse a stack and print where the timeline is; raise Stop if the rehearsal fails."""
    stack = require_stack_file(name)
    if not speed > 0:
        raise Stop(f"--speed: {speed:g} is not allowed; allowed: any number above 0", "--speed 10", BAD_INPUT)
    if nodes < 1:
        raise Stop(f"--nodes: {nodes} is not allowed; allowed: 1 or more", "--nodes 2", BAD_INPUT)
    spec = require_valid_spec(stack, *examine_spec(stack, None, look_up=False))
    target = target_of(spec)
    if not isinstance(target, Rehearses):
        able = ", ".join(sorted(other.name for other in targets().values() if isinstance(other, Rehearses)))
        what = f"stack {name} has target {target.name}, which cannot be rehearsed; allowed: {able}"
        raise Stop(what, f"run `{format_command('up', name)}`, or choose a stack of such a target", BAD_INPUT)
    began = time.monotonic()
    folder = target.rehearse(stack, RehearsalOptions(seed, speed, nodes), screen)
    screen.print_success(f"rehearsed in {time.monotonic() - began:.0f} s; timeline: {folder / 'timeline.svg'}")
