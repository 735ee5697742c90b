"""Node containers that no state knows of: left by an `up` that was killed between making one and writing it down."""

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
    """For when a network or volume goes: every node that Pulumi knows went before, so what is left is nobody's."""
    wanted = {"label": [f"{names.CLUSTER}={cluster}", f"{names.STACK}={stack}"]}
    for container in api.containers(all=True, filters=wanted):
        if engine_client.foreign(container["Labels"]):
            continue
        remove_container(api, container["Id"])
        cgroup_tree.remove_node(cluster, container["Labels"].get(names.NODE, ""))


def remove_container(api: docker.APIClient, name: str) -> None:
    """What is gone already is fine; what somebody else is removing is waited for."""
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
