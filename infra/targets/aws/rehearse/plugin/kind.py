"""A resource type as a table entry: its properties, and the calls that create, read, update and delete it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from infra.targets.aws.launcher.errors import classify_error

_SERVER_ERROR = 500
_FIRST_PAUSE_S = 0.01

Props = dict[str, Any]
Tags = dict[str, str]
Created = tuple[str, Props]
"""Id and computed properties of a new resource."""


class Aws:
    """Clients of one region, created on first use."""

    def __init__(self, region: str, max_retries: int = 0) -> None:
        self.region, self._max_retries = region, max_retries
        self._clients: dict[str, Any] = {}

    def __getattr__(self, service: str) -> Any:
        if service not in self._clients:
            once = Config(retries={"total_max_attempts": 1})
            client = boto3.client(service, region_name=self.region, config=once)
            client.meta.events.register("needs-retry", self._choose_pause)
            self._clients[service] = client
        return self._clients[service]

    def _choose_pause(self, response: Any, attempts: int, **_: Any) -> float | None:
        """Return the seconds until a throttled call is repeated, or None; the real provider waits longer."""
        if response is None or attempts > self._max_retries:
            return None
        http, parsed = response
        error = ClientError({"Error": {"Code": "", **parsed.get("Error", {})}}, "")
        is_transient = http.status_code >= _SERVER_ERROR or classify_error(error).kind == "throttle"
        return _FIRST_PAUSE_S * 2**attempts if is_transient else None


@dataclass(frozen=True)
class Kind:
    """A resource type; lists of properties are strings separated by spaces."""

    token: str
    replace: str
    """Properties whose change replaces the resource; `!` marks required ones."""
    create: Callable[[Aws, Props, Tags], Created]
    delete: Callable[[Aws, str, Props], None]
    read: Callable[[Aws, str, Props], Props | None]
    """Returns the properties that AWS reports, to detect drift, or None if the resource does not exist."""
    change: str = ""
    """Properties that can be changed in place."""
    update: Callable[[Aws, str, Props, Tags], Props] = lambda *_: {}
    """Takes the new properties and returns changed computed ones."""
    complete: Callable[[Aws, str, Props, Tags], Props] = lambda *_: {}
    """Makes the calls that follow the creation, and returns the computed properties that they read.

    If one of them fails, the resource stays in the state, and the next `up` makes all of them again.
    """
    computed: str = ""
    """Outputs that are not inputs, other than the id."""
    tagged: bool = False
    """Whether the resource gets the provider's default tags."""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Names allowed within properties that are objects or lists of objects."""

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
    """Return a name with its first letter in upper case."""
    return name[0].upper() + name[1:]


def to_api(value: Any) -> Any:
    """Convert a property for the API: PascalCase keys, and the strings true and false as booleans."""
    if isinstance(value, dict):
        return {upper(key): to_api(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [to_api(item) for item in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def call_parameters(props: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return the parameters of a call from properties of the same names."""
    return {upper(name): to_api(props[name]) for name in names.split() if props.get(name) is not None}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of most APIs."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def get_if_exists(call: Callable[[], Mapping[str, Any]], *gone: str) -> Mapping[str, Any] | None:
    """Return the response, or None if AWS reports that the resource does not exist."""
    try:
        return call()
    except ClientError as error:
        if _is_gone(error, gone):
            return None
        raise


def delete_if_exists(call: Callable[[], Any], *gone: str) -> None:
    """Call, ignoring the error that the resource does not exist."""
    try:
        call()
    except ClientError as error:
        if not _is_gone(error, gone):
            raise


def _is_gone(error: ClientError, also: Iterable[str]) -> bool:
    code = error.response["Error"]["Code"]
    return any(word in code for word in ("NotFound", "NoSuch", *also)) or code == "404"
