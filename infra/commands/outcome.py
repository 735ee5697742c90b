"""How the last `up` of a stack ended: kept beside its logs, read by `status`, `output` and `demo`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime

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


def write(stack: StackHome, outcome: Outcome) -> None:
    private_folder(stack.folder)
    stack.last_up.write_text(json.dumps(asdict(outcome), indent=2) + "\n")


def read(stack: StackHome) -> Outcome | None:
    try:
        return Outcome(**json.loads(stack.last_up.read_text()))
    except (OSError, ValueError, TypeError):
        return None
