"""Delete and read calls that take an id or a list of ids, for any service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.targets.aws.rehearse.plugin.kind import Aws, Props, delete_if_exists, get_if_exists

_POLL_S = 0.5


def delete(service: str, operation: str, parameter: str) -> Callable[[Aws, str, Props], None]:
    """Return the function that deletes a resource with one call."""

    def delete_resource(aws: Aws, id_: str, _props: Props) -> None:
        delete_if_exists(lambda: _call(aws, service, operation, parameter, id_), "Unknown")

    return delete_resource


def wait_until_available(read_row: Callable[[], Props], state_key: str) -> Props:
    """Return the row of a new resource once it is available, as the real provider does."""
    while (row := read_row())[state_key].lower() != "available":
        time.sleep(_POLL_S)
    return row


def wait_until_gone(read_state: Callable[[], str | None]) -> None:
    """Wait until a resource is deleted, as the real provider does; it has no state once it is no longer listed."""
    while (state := read_state()) is not None and state.lower() != "deleted":
        time.sleep(_POLL_S)


def read_existence(service: str, operation: str, parameter: str) -> Callable[[Aws, str, Props], Props | None]:
    """Return a reader that checks only whether the resource exists."""

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return None if get_if_exists(lambda: _call(aws, service, operation, parameter, id_)) is None else {}

    return read


def _call(aws: Aws, service: str, operation: str, parameter: str, id_: str) -> Any:
    return getattr(getattr(aws, service), operation)(**{parameter: [id_] if parameter.endswith("s") else id_})
