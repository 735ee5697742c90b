"""Calls that take one id, or a list of them, in whatever service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.infra.targets.aws.with_engine.plugin.kind import Aws, Props, found, removed


def delete(service: str, operation: str, parameter: str) -> Callable[[Aws, str, Props], None]:
    def delete_one(aws: Aws, id_: str, _props: Props) -> None:
        removed(lambda: _call(aws, service, operation, parameter, id_), "Unknown")

    return delete_one


def there(service: str, operation: str, parameter: str) -> Callable[[Aws, str, Props], Props | None]:
    """Whether it exists; nothing is compared."""

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        return None if found(lambda: _call(aws, service, operation, parameter, id_)) is None else {}

    return read


def _call(aws: Aws, service: str, operation: str, parameter: str, id_: str) -> Any:
    return getattr(getattr(aws, service), operation)(**{parameter: [id_] if parameter.endswith("s") else id_})
