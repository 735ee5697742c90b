"""Operations that take time on the server that stands in for Azure, and errors that tests inject."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Message = dict[str, Any]
FAULT_WAIT_S = 60.0
"""For how long a fault waits for the call that has to come before it."""


@dataclass
class Fault:
    """An error for calls of a method whose path contains some text."""

    method: str
    path: str
    status: int
    error: Message
    headers: dict[str, str] = field(default_factory=dict)
    in_operation: bool = False
    """Whether the call is accepted and its operation fails."""
    times: int = 1
    after: str = ""
    """Some text of the path of another call of the method that has to come before the answer."""

    def is_due(self, calls: Iterable[str]) -> bool:
        """Return whether the call that has to come before the answer is among these calls."""
        return any(call.startswith(f"{self.method} ") and self.after.casefold() in call.casefold() for call in calls)


@dataclass
class Operation:
    polls: int
    finish: Callable[[], Message | None]
    busy: str
    """The resource that nothing else may change meanwhile."""
    error: Message | None = None
    machines: list[Future[None]] = field(default_factory=list)
    result: Message | None = None
    done: bool = False

    def answer(self, *, results: bool) -> tuple[int, dict[str, str], Message | None]:
        """Return status, headers and body of the answer to who asks for its state, or for its result."""
        if results:
            return (200 if self.result else 204), {}, self.result
        if not self.done:
            return 200, {"Retry-After": "0"}, {"status": "InProgress"}
        if self.error is not None:
            return 200, {}, {"status": "Failed", "error": self.error}
        return 200, {}, {"status": "Succeeded"}


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def take_fault(faults: list[Fault], method: str, path: str) -> Fault | None:
    """Return the fault of a call, if there is one; remove it once it has happened as often as it should."""
    for fault in faults:
        if fault.method == method and fault.path in path.casefold():
            fault.times -= 1
            if fault.times <= 0:
                faults.remove(fault)
            return fault
    return None


def format_now() -> str:
    """Return the time as Azure writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
