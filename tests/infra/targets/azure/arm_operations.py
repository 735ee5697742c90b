"""Operations that take time on the server that stands in for Azure, and errors that tests inject."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Message = dict[str, Any]


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


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def format_now() -> str:
    """Return the time as Azure writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
