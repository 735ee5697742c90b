"""The end of what a rehearsal has on this machine: an error of one removal does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from docker.errors import APIError, NotFound

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client

_CONFLICT = 409


def remove_container(name: str) -> None:
    """Remove a container, unless it does not exist or is being removed already."""
    with engine_client.api_session(name) as api:
        _tolerate_absence(lambda: api.remove_container(name, force=True, v=True))


def stop_container(name: str) -> None:
    """Kill the processes of a container, unless it does not exist or does not run."""
    with engine_client.api_session(name) as api:
        _tolerate_absence(lambda: api.kill(name))


def remove_network(name: str) -> None:
    """Remove a network, unless it does not exist."""
    with engine_client.api_session("network") as api:
        _tolerate_absence(lambda: api.remove_network(name))


def remove_all(cluster: str, disks: Disks) -> list[str]:
    """Remove everything that a rehearsal has in Docker, also what an earlier one that was killed has left.

    Return the errors of what could not be removed.
    """
    chosen = {"label": f"{names.CLUSTER}={cluster}"}
    api = engine_client.connect()
    errors = try_each(remove_container, lambda: [entry["Id"] for entry in api.containers(all=True, filters=chosen)])
    errors += try_each(_remove_image, lambda: [entry["Id"] for entry in api.images(filters=chosen)])
    # Loop devices hold the files of volumes.
    errors += try_each(disks.detach, disks.list_volumes)
    errors += try_each(remove_network, lambda: [entry["Id"] for entry in api.networks(filters=chosen)])
    errors += try_each(
        _remove_volume, lambda: [entry["Name"] for entry in api.volumes(filters=chosen)["Volumes"] or []]
    )
    return errors + try_each(cgroup_tree.remove_cluster, lambda: [cluster])


def try_each(remove: Callable[[str], object], list_names: Callable[[], list[str]]) -> list[str]:
    """Remove everything of a list and return the errors."""
    errors = []
    try:
        listed = list_names()
    except (ResourceError, APIError, OSError) as error:
        return [str(error)]
    for name in listed:
        try:
            remove(name)
        except (ResourceError, APIError, OSError) as error:
            errors.append(f"{name}: {error}")
    return errors


def _remove_image(id_: str) -> None:
    with engine_client.api_session("image") as api:
        _tolerate_absence(lambda: api.remove_image(id_, force=True))


def _remove_volume(name: str) -> None:
    with engine_client.api_session(name) as api:
        try:
            api.remove_volume(name, force=True)
        except NotFound:
            return


def _tolerate_absence(call: Callable[[], Any]) -> None:
    try:
        call()
    except NotFound:
        return
    except APIError as error:
        if error.status_code != _CONFLICT:
            raise
