"""What an upgrade needs from the Docker engine: the packages in the node image of a release, and a twin container."""

from __future__ import annotations

import base64
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from docker.types import Mount

from bootstrap.transport.base import DEFAULT_TIMEOUT_S, Completed, OnLine, TransportError, put_script
from cluster import names
from cluster.inventory import Node
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container
from infra.targets.local.strays import remove_container

PACKAGES = ".packages/slurm"
"""Folder on the shared filesystem with a folder of packages per release."""
_IMAGE_PACKAGES = "/opt/muster/slurm"
_TWIN = "twin"
_BOOT_TIMEOUT_S = 60.0
_POLL_S = 0.2


def check_release(release: str) -> None:
    """Raise ResourceError if the node image with this release does not exist."""
    with engine_client.api_session("software.slurm") as api:
        if not api.images(names.image(release)):
            message = f"the node image {names.image(release)} does not exist"
            raise ResourceError("software.slurm", message, f"`python3 -m setup --slurm {release}` builds it")


def publish_packages(plan: BuildPlan, stack: str, release: str) -> str:
    """Copy the packages of this release and of the one before it to the shared filesystem; return the folder there."""
    volume = plan.volumes[0]
    folder = f"{volume.mount}/{PACKAGES}"
    mount = Mount(target=volume.mount, source=names.volume(plan.cluster, volume.name), type="volume")
    script = f"rm -rf {folder} && mkdir -p {folder} && cp -r {_IMAGE_PACKAGES}/. {folder} && chmod -R go-w {folder}"
    with engine_client.api_session("software.slurm") as api:
        container = api.create_container(
            names.image(release),
            ["sh", "-c", script],
            labels=engine_client.labels(plan.cluster, stack, {}),
            host_config=api.create_host_config(mounts=[mount], network_mode="none"),
        )["Id"]
        try:
            api.start(container)
            if api.wait(container)["StatusCode"] != 0:
                output = api.logs(container).decode(errors="replace").strip()
                raise ResourceError("software.slurm", f"the packages cannot be copied to {folder}: {output}", "")
        finally:
            remove_container(api, container)
    return folder


@contextmanager
def open_twin(plan: BuildPlan, stack: str, controller: Node, release: str) -> Iterator[ContainerTransport]:
    """Start a container with the controller's name and this release, but without a network; remove it at the end."""
    name, tree = names.container(plan.cluster, _TWIN), f"{plan.cluster}-{_TWIN}"
    planned = next(node for node in plan.nodes if node.name == controller.name)
    props: dict[str, Any] = {
        "cluster": plan.cluster, "stack": stack, "node": controller.name, "role": _TWIN, "image": names.image(release),
        "cpus": planned.cpus, "memory_mb": planned.memory_mb, "mounts": [],
    }  # fmt: skip
    with engine_client.api_session("twin") as api:
        host = node_container.host_config(props, engine_client.engine(), api.api_version)
        host["NetworkMode"] = "none"
        options = node_container.options(props, engine_client.labels(plan.cluster, stack, {}))
        # The twin has the host name of the controller, so its group in the host's tree must have another parent.
        options |= {"name": name, "environment": options["environment"] | {"MUSTER_CLUSTER": tree}}
        remove_container(api, name)
        try:
            api.create_container(**options, host_config=host)
            api.start(name)
            transport = ContainerTransport(name)
            _wait_for_systemd(transport)
            yield transport
        finally:
            remove_container(api, name)
            cgroup_tree.remove_cluster(tree)


class ContainerTransport:
    """A transport to a container without a network, through the Docker engine."""

    def __init__(self, container: str) -> None:
        self._container = container

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,  # noqa: ARG002  # no caller follows the output of a twin
    ) -> Completed:
        body = script.encode()
        command = ["docker", "exec", "-i", self._container, "sh", "-c", f'eval "$(head -c {len(body)})"']
        try:
            done = subprocess.run(
                command, input=body + (stdin or b""), capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise TransportError(self._container, f"no answer within {timeout:.0f} s") from None
        return Completed(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None:
        done = self.run(put_script(path, mode, owner), stdin=data)
        if done.code != 0:
            raise TransportError(self._container, f"cannot write {path}: {done.err.strip()}")

    def get(self, path: str) -> bytes:
        return base64.b64decode(self.run(f"base64 {shlex.quote(path)}").out)

    def close(self) -> None:
        """Do nothing: every script has its own process."""


def _wait_for_systemd(transport: ContainerTransport) -> None:
    deadline = time.monotonic() + _BOOT_TIMEOUT_S
    while transport.run("systemctl is-system-running").out.strip() not in ("running", "degraded"):
        if time.monotonic() > deadline:
            raise ResourceError("twin", f"its systemd is not up after {_BOOT_TIMEOUT_S:.0f} s", "run it again")
        time.sleep(_POLL_S)
