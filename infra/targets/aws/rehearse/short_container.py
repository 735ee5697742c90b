"""Containers of the node image that run one script and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import ImageNotFound
from docker.types import Mount

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.local import docker_engine as engine_client


def run_short_container(
    script: str, mounts: Sequence[Mount], labels: Mapping[str, str], image: str = names.IMAGE, **options: Any
) -> tuple[int, str]:
    """Run a script in a container without a network and return its exit code and output.

    The labels let a later cleanup find the container; `options` are those of Docker's host configuration.
    """
    with engine_client.api_session("container") as api:
        host: Any = api.create_host_config(mounts=list(mounts), network_mode="none", **options)
        try:
            container = api.create_container(
                image, ["sh", "-c", script], entrypoint="", host_config=host, labels=dict(labels)
            )["Id"]
        except ImageNotFound as missing:
            message = f"the node image {image} does not exist"
            raise ResourceError("", message, "build it with `make setup`") from missing
        try:
            api.start(container)
            code = int(api.wait(container)["StatusCode"])
            return code, api.logs(container).decode(errors="replace").strip()
        finally:
            api.remove_container(container, force=True, v=False)
