"""Turn exceptions that the user can fix into messages; any other exception is a bug in muster."""

from __future__ import annotations

from infra.engine.command_line import rewrite_commands
from infra.engine.stop import Stop
from infra.resources.error import ResourceError
from infra.targets.mixins import OnThisMachine
from infra.targets.registry import targets


def explain_failure(failure: Exception) -> Stop | None:
    """Return the message for a failure, or None for a bug, which needs its traceback."""
    if isinstance(failure, Stop):
        return failure
    if isinstance(failure, ResourceError):
        what, _, fix = str(failure).partition(" Fix: ")
        return Stop(what.rstrip("."), fix.rstrip("."))
    hosts = (target for target in targets().values() if isinstance(target, OnThisMachine))
    return next((stop for host in hosts if (stop := host.explain_error(failure))), None)


def name_stack(stop: Stop, stack: str) -> Stop:
    """Return the message with the name of the stack in its commands."""
    return Stop(rewrite_commands(stop.what, stack), rewrite_commands(stop.fix, stack), stop.code)
