"""One resource type as a table entry: its properties, and what is called to make, read, change and remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

Props = dict[str, Any]
Tags = dict[str, str]
Made = tuple[str, Props]
"""Id and computed properties."""


class Aws:
    """Clients of one region; made once each, in the order of need."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._clients: dict[str, Any] = {}

    def __getattr__(self, service: str) -> Any:
        if service not in self._clients:
            once = Config(retries={"total_max_attempts": 1})
            self._clients[service] = boto3.client(service, region_name=self.region, config=once)
        return self._clients[service]


@dataclass(frozen=True)
class Kind:
    token: str
    replace: str
    """Properties whose change makes a new one; separated by blanks, `!` behind those that must be given."""
    create: Callable[[Aws, Props, Tags], Made]
    delete: Callable[[Aws, str, Props], None]
    read: Callable[[Aws, str, Props], Props | None]
    """What can be seen of it: properties with other values have drifted. None: it is gone."""
    change: str = ""
    """Properties that can be changed in place."""
    update: Callable[[Aws, str, Props, Tags], Props] = lambda *_: {}
    """Gets the new properties; gives computed ones that are new."""
    computed: str = ""
    """Outputs that no input has, besides id."""
    tagged: bool = False
    """Whether the provider's default tags reach it."""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Names within properties that are objects or lists of objects."""

    @property
    def properties(self) -> frozenset[str]:
        own = [word.rstrip("!") for word in (*self.replace.split(), *self.change.split())]
        return frozenset([*own, *(["tags"] if self.tagged else [])])

    @property
    def required(self) -> frozenset[str]:
        return frozenset(w.rstrip("!") for w in (*self.replace.split(), *self.change.split()) if w.endswith("!"))

    @property
    def replacing(self) -> frozenset[str]:
        return frozenset(word.rstrip("!") for word in self.replace.split())

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.computed.split(), *(["tagsAll"] if self.tagged else []))


def upper(name: str) -> str:
    return name[0].upper() + name[1:]


def api(value: Any) -> Any:
    """A property as the API wants it: PascalCase keys; words that mean true and false as such."""
    if isinstance(value, dict):
        return {upper(key): api(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [api(one) for one in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def asked(props: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Parameters of a call, from properties of the same names."""
    return {upper(name): api(props[name]) for name in names.split() if props.get(name) is not None}


def listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def found(ask: Callable[[], Mapping[str, Any]], *gone: str) -> Mapping[str, Any] | None:
    """The answer, or None where AWS says that there is no such thing."""
    try:
        return ask()
    except ClientError as error:
        if _is_gone(error, gone):
            return None
        raise


def removed(ask: Callable[[], Any], *gone: str) -> None:
    """What is gone already is fine."""
    try:
        ask()
    except ClientError as error:
        if not _is_gone(error, gone):
            raise


def _is_gone(error: ClientError, also: Iterable[str]) -> bool:
    code = error.response["Error"]["Code"]
    return any(word in code for word in ("NotFound", "NoSuch", *also)) or code == "404"
