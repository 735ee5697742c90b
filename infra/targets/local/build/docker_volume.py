"""The volumes of a local cluster: shared filesystems, the controller's state, and the cache that outlives clusters."""

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
    """The provider of DockerVolume; its inputs are VolumeArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        name = names.volume(props["cluster"], props["storage"])
        with engine_client.api_session(f"volume {name}") as api:
            volume = _inspect(api, name)
            if volume is None:
                labels = engine_client.labels(props["cluster"], props["stack"], props.get("tags", {}))
                volume = api.create_volume(name, labels=labels | ({names.KEEP: "true"} if props.get("keep") else {}))
            engine_client.check_owner("volume", name, volume.get("Labels"), props["cluster"], props["stack"])
            return CreateResult(name, props | {"created": volume["Labels"].get(names.CREATED, "")})

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.api_session(f"volume {id_}") as api:
            volume = _inspect(api, id_)
            if volume is None or engine_client.is_foreign(volume.get("Labels")):
                return ReadResult("", {})
            return ReadResult(id_, props)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster", "stack", "storage"))
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=True)

    def delete(self, id_: str, props: Properties) -> None:
        with engine_client.api_session(f"volume {id_}") as api:
            remove_strays(api, props["cluster"], props["stack"])
            remove(api, id_)


@dataclass(frozen=True)
class VolumeArgs:
    """The inputs of a DockerVolume."""

    cluster: str
    stack: str
    storage: str
    """Name of the storage in the spec, or of a part of the controller's state."""
    tags: Mapping[str, str]
    keep: bool = False
    """Whether teardown leaves it."""


class DockerVolume(Resource, module="muster", name="DockerVolume"):
    """A Docker volume of a cluster.

    One that is kept is protected, so that it and its protection stay in the state when the cluster is destroyed. Docker
    cannot change the labels of a volume: its own label is only what holds if the state is lost.
    """

    def __init__(self, name: str, args: VolumeArgs, opts: pulumi.ResourceOptions) -> None:
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(protect=args.keep))
        super().__init__(DockerVolumeProvider(), name, {**vars(args), "created": None}, opts)


def remove(api: docker.APIClient, name: str) -> None:
    """Remove a volume, if it exists and does not belong to another MUSTER_HOME."""
    volume = _inspect(api, name)
    if volume is None or engine_client.is_foreign(volume.get("Labels")):
        return
    try:
        api.remove_volume(name)
    except NotFound:
        return


def ensure_environment_cache(api: docker.APIClient) -> None:
    """Create the volume that caches training environments, unless it exists.

    Environments outlive clusters: no Pulumi resource owns this volume, so destroying a cluster does not remove it.
    """
    if _inspect(api, names.ENV_CACHE_VOLUME) is None:
        # The id tells setup whether this is still the volume that it has filled.
        api.create_volume(names.ENV_CACHE_VOLUME, labels={names.CACHE: "env", names.ID: uuid4().hex})


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    """Return Docker's description of a volume; None if it does not exist."""
    try:
        volume: dict[str, Any] = api.inspect_volume(name)
    except NotFound:
        return None
    return volume
