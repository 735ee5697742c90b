"""The cluster, region and account that a stack's own state names, even if the stack file has changed since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import names

_PROVIDER_TYPE = "pulumi:providers:aws"
_RESOLVED_SUFFIX = ":AwsResolved"
_AWS_PREFIX = "aws:"
_ARN_FIELDS = 6
_ARN_ACCOUNT = 4


@dataclass(frozen=True)
class StateRecord:
    """What a state says about its cluster; a value is empty if the state does not have it."""

    cluster: str
    region: str
    account: str
    images: Mapping[str, str] = field(default_factory=dict)
    """Images that the build looked up because the spec does not name them, by kind."""


def read_state_record(state: Path) -> StateRecord | None:
    """Return what a state says; None if it has no AWS resources or cannot be read."""
    resources = _read_resources(state)
    providers = [resource for resource in resources if resource.get("type") == _PROVIDER_TYPE]
    if not providers:
        return None
    return StateRecord(
        cluster=next(_find_clusters(resources), ""),
        region=str(_get_object(providers[0], "inputs").get("region", "")),
        account=next(_find_accounts(resources), ""),
        images=next(_find_images(resources), {}),
    )


def _find_clusters(resources: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield cluster names from the provider's default tags and from the tags of resources."""
    for resource in resources:
        if resource.get("type") == _PROVIDER_TYPE:
            yield from _read_cluster_tag(_to_object(_get_object(resource, "inputs").get("defaultTags")).get("tags"))
        elif str(resource.get("type", "")).startswith(_AWS_PREFIX):
            yield from _read_cluster_tag(_get_object(resource, "outputs").get("tagsAll"))


def _find_accounts(resources: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the account that the build resolved, then those in ARNs, which storage that teardown kept still has."""
    for resource in resources:
        if str(resource.get("type", "")).endswith(_RESOLVED_SUFFIX):
            yield from filter(str.isdigit, [str(_get_object(resource, "outputs").get("account"))])
    for resource in resources:
        fields = str(_get_object(resource, "outputs").get("arn", "")).split(":", _ARN_FIELDS - 1)
        is_aws = str(resource.get("type", "")).startswith(_AWS_PREFIX)
        if is_aws and len(fields) == _ARN_FIELDS and fields[_ARN_ACCOUNT].isdigit():
            yield fields[_ARN_ACCOUNT]


def _find_images(resources: list[Mapping[str, Any]]) -> Iterator[Mapping[str, str]]:
    for resource in resources:
        if str(resource.get("type", "")).endswith(_RESOLVED_SUFFIX):
            yield _to_object(_get_object(resource, "outputs").get("images"))


def _read_cluster_tag(tags: Any) -> Iterator[str]:
    yield from filter(None, [str(_to_object(tags).get(names.CLUSTER) or "")])


def _read_resources(state: Path) -> list[Mapping[str, Any]]:
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"]["resources"]
        return [resource for resource in resources if isinstance(resource, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _get_object(resource: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _to_object(resource.get(name))


def _to_object(value: Any) -> Mapping[str, Any]:
    """Return a mapping; Pulumi stores a provider's nested settings as JSON text."""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
