"""Record and read the result of the last `up` of a stack, by muster or by plain `pulumi up`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from infra.engine import history, lock
from infra.home import StackHome, private_folder


@dataclass(frozen=True)
class LastUp:
    """The result of one run of `up`."""

    result: str
    """`ready`, `failed`, `interrupted`, or `running` until another result is written."""
    at: str
    """When it began, in ISO format."""
    seconds: float = 0.0
    changed: bool = False
    phases: dict[str, float] = field(default_factory=dict)
    created: bool = False
    """Whether it created machines."""

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)

    @property
    def ended(self) -> float:
        return self.when.timestamp() + self.seconds


def write_last_up(stack: StackHome, last: LastUp) -> None:
    """Record the result of an `up`."""
    private_folder(stack.folder)
    stack.last_up.write_text(json.dumps(asdict(last), indent=2) + "\n")


def read_last_up(stack: StackHome) -> LastUp | None:
    """Return the result of the latest `up`; None if there was none since the last `pulumi destroy`."""
    ours, last = _written(stack), history.last_run(stack)
    if running := lock.pulumi_holders(stack):
        began = running[0].since
        # After a second Ctrl-C, Pulumi does not remove its lock.
        stopped = ours is not None and ours.result == "interrupted" and began.timestamp() <= ours.ended
        return ours if stopped else LastUp("running", began.isoformat())
    if last is None or (ours and last.ended < ours.ended):
        return ours
    if last.kind == "destroy" and last.good:
        return None
    at = datetime.fromtimestamp(last.began, UTC).isoformat(timespec="seconds")
    ready = last.kind == "update" and last.good
    # Pulumi records an interrupted run as failed; our own record of the same run is more precise.
    stopped = ours is not None and ours.result == "interrupted" and last.began <= ours.ended
    return LastUp("ready" if ready else "interrupted" if stopped else "failed", at, round(last.ended - last.began, 1))


def _written(stack: StackHome) -> LastUp | None:
    try:
        return LastUp(**json.loads(stack.last_up.read_text()))
    except (OSError, ValueError, TypeError):
        return None
