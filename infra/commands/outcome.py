"""How the last `up` of a stack ended, ours or a plain `pulumi up`: read by `status` and `output`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from infra.engine import history, lock
from infra.home import StackHome, private_folder


@dataclass(frozen=True)
class Outcome:
    result: str
    """`ready`, `failed`, or `running` while nobody has written another one."""
    at: str
    seconds: float = 0.0
    changed: bool = False
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)

    @property
    def ended(self) -> float:
        return self.when.timestamp() + self.seconds


def write(stack: StackHome, outcome: Outcome) -> None:
    private_folder(stack.folder)
    stack.last_up.write_text(json.dumps(asdict(outcome), indent=2) + "\n")


def read(stack: StackHome) -> Outcome | None:
    """Whichever came last; None where there is nothing to tell of, as after a plain `pulumi destroy`."""
    if running := lock.pulumi_holders(stack):
        return Outcome("running", running[0].since.isoformat())
    ours, last = _written(stack), history.last_run(stack)
    if last is None or (ours and last.ended < ours.ended):
        return ours
    if last.kind == "destroy" and last.good:
        return None
    began = datetime.fromtimestamp(last.began, UTC).isoformat(timespec="seconds")
    ready = last.kind == "update" and last.good
    return Outcome("ready" if ready else "failed", began, round(last.ended - last.began, 1))


def _written(stack: StackHome) -> Outcome | None:
    try:
        return Outcome(**json.loads(stack.last_up.read_text()))
    except (OSError, ValueError, TypeError):
        return None
