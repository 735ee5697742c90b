"""A shared filesystem of the local target: a named Docker volume, and the cache volume that outlives clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import docker
import pulumi
from docker.errors import NotFound
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider

from cluster import names
from infra.resources.properties import Properties, changed
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.strays import remove_strays


class DockerVolumeProvider(ResourceProvider):
    """Inputs: VolumeArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        name = names.volume(props["cluster"], props["storage"])
        with engine_client.asking(f"volume {name}") as api:
            found = _inspect(api, name)
            if found is None:
                found = api.create_volume(
                    name, labels=engine_client.labels(props["cluster"], props["stack"], props.get("tags", {}))
                )
            engine_client.check_owner("volume", name, found.get("Labels"), props["cluster"], props["stack"])
            return CreateResult(name, props | {"created": found["Labels"].get(names.CREATED, "")})

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.asking(f"volume {id_}") as api:
            found = _inspect(api, id_)
            if found is None or engine_client.foreign(found.get("Labels")):
                return ReadResult("", {})
            return ReadResult(id_, props)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster", "stack", "storage"))
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=True)

    def delete(self, id_: str, props: Properties) -> None:
        with engine_client.asking(f"volume {id_}") as api:
            remove_strays(api, props["cluster"], props["stack"])
            remove(api, id_)


@dataclass(frozen=True)
class VolumeArgs:
    cluster: str
    stack: str
    storage: str
    tags: Mapping[str, str]


class DockerVolume(Resource, module="muster", name="DockerVolume"):
    def __init__(self, name: str, args: VolumeArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(DockerVolumeProvider(), name, {**vars(args), "created": None}, opts)


def remove(api: docker.APIClient, name: str) -> None:
    """What another home has made under this name stays."""
    found = _inspect(api, name)
    if found is None or engine_client.foreign(found.get("Labels")):
        return
    try:
        api.remove_volume(name)
    except NotFound:
        return


def keep_environment_cache(api: docker.APIClient) -> None:
    """Training environments outlive clusters; no resource owns this volume, so that no destroy removes it."""
    if _inspect(api, names.ENV_CACHE_VOLUME) is None:
        # Set-up knows by its id whether this is the volume that it has filled.
        api.create_volume(names.ENV_CACHE_VOLUME, labels={names.CACHE: "env", names.ID: uuid4().hex})


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.inspect_volume(name)
    except NotFound:
        return None
    return found
