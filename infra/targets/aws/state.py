"""Where a stack's cluster on AWS is, by the stack's own state, whatever became of the stack file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import names

_PROVIDER = "pulumi:providers:aws"
_RESOLVED = ":AwsResolved"
_OF_AWS = "aws:"


@dataclass(frozen=True)
class Made:
    """What a state says; empty where it does not."""

    cluster: str
    region: str
    account: str


def made(state: Path) -> Made | None:
    """None for a state that holds nothing of AWS, or cannot be read."""
    resources = _resources(state)
    providers = [one for one in resources if one.get("type") == _PROVIDER]
    if not providers:
        return None
    return Made(
        cluster=next(_clusters(resources), ""),
        region=str(_part(providers[0], "inputs").get("region", "")),
        account=next(_accounts(resources), ""),
    )


def _clusters(resources: list[Mapping[str, Any]]) -> Iterator[str]:
    """By the tags that the provider puts on everything, and by what carries them."""
    for one in resources:
        if one.get("type") == _PROVIDER:
            yield from _tagged(_object(_part(one, "inputs").get("defaultTags")).get("tags"))
        elif str(one.get("type", "")).startswith(_OF_AWS):
            yield from _tagged(_part(one, "outputs").get("tagsAll"))


def _accounts(resources: list[Mapping[str, Any]]) -> Iterator[str]:
    """As it was asked for once; of storage that was kept the addresses still say it."""
    for one in resources:
        if str(one.get("type", "")).endswith(_RESOLVED):
            yield from filter(str.isdigit, [str(_part(one, "outputs").get("account"))])
    for one in resources:
        fields = str(_part(one, "outputs").get("arn", "")).split(":", 5)
        if str(one.get("type", "")).startswith(_OF_AWS) and len(fields) > 5 and fields[4].isdigit():  # noqa: PLR2004
            yield fields[4]


def _tagged(tags: Any) -> Iterator[str]:
    yield from filter(None, [str(_object(tags).get(names.CLUSTER) or "")])


def _resources(state: Path) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(state.read_text())["checkpoint"]["latest"]["resources"]
        return [one for one in found if isinstance(one, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _part(resource: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _object(resource.get(name))


def _object(value: Any) -> Mapping[str, Any]:
    """Pulumi keeps a provider's nested settings as JSON text."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
