"""Node containers that are in no state, left by an `up` that was killed before it could record them."""

from __future__ import annotations

import time
from http import HTTPStatus

import docker
from docker.errors import APIError, NotFound

from cluster import names
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client

_OTHERS_S = 20.0
_POLL_S = 0.05


def remove_strays(api: docker.APIClient, cluster: str, stack: str) -> None:
    """Remove the remaining containers of a cluster; call it after Pulumi has removed all nodes it knows."""
    filters = {"label": [f"{names.CLUSTER}={cluster}", f"{names.STACK}={stack}"]}
    for container in api.containers(all=True, filters=filters):
        if engine_client.is_foreign(container["Labels"]):
            continue
        remove_container(api, container["Id"])
        cgroup_tree.remove_node(cluster, container["Labels"].get(names.NODE, ""))


def remove_container(api: docker.APIClient, name: str) -> None:
    """Remove a container, if it exists; wait if another process is removing it."""
    deadline = time.monotonic() + _OTHERS_S
    while True:
        try:
            api.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError as refused:
            if refused.status_code != HTTPStatus.CONFLICT or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
