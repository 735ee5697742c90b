"""What upgrades and builds of images need from the Docker engine: packages of a release, and a machine for a while."""

from __future__ import annotations

import base64
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from docker.types import Mount

from bootstrap.steps.cloud.slurm_packages import PUBLISHED
from bootstrap.transport.base import DEFAULT_TIMEOUT_S, Completed, OnLine, TransportError, put_script
from bootstrap.transport.ssh import SshTransport
from bootstrap.upgrade.steps import BACKUPS, DISTRIBUTION, PublishedPackages
from cluster import names
from cluster.inventory import Inventory
from cluster.spec.model import SlurmRelease
from infra.home import StackHome
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container
from infra.targets.local.strays import remove_container
from infra.targets.mixins import UpgradeNodes

NEWEST = get_args(SlurmRelease)[-1]
"""Release whose image has the packages of all."""
IMAGE_PACKAGES = "/opt/muster/slurm"
"""Folder in that image with a folder of packages per release."""
_TWIN = "twin"
_BOOT_TIMEOUT_S = 60.0
_POLL_S = 0.2


def check_release(release: str) -> None:
    """Raise ResourceError if the node image with this release does not exist."""
    with engine_client.api_session("software.slurm") as api:
        if not api.images(names.image(release)):
            message = f"the node image {names.image(release)} does not exist"
            raise ResourceError("software.slurm", message, f"`python3 -m setup --slurm {release}` builds it")


def reach_nodes(stack: StackHome, inventory: Inventory) -> UpgradeNodes:
    """Return the nodes with connections over SSH; the image has Debian's packages."""
    private_key = (stack.folder / "id_ed25519").read_text()
    return UpgradeNodes(inventory, partial(SshTransport.connect, private_key=private_key), DISTRIBUTION, BACKUPS)


def publish_packages(plan: BuildPlan, stack: str, release: str) -> PublishedPackages:
    """Copy the packages of all releases to the shared filesystem; the sums are those of the image."""
    volume = plan.volumes[0]
    folder = f"{volume.mount}/{PUBLISHED}"
    mount = Mount(target=volume.mount, source=names.volume(plan.cluster, volume.name), type="volume")
    script = f"rm -rf {folder} && mkdir -p {folder} && cp -r {IMAGE_PACKAGES}/. {folder} && chmod -R go-w {folder}"
    script = f"{script} && cd {IMAGE_PACKAGES}/{release} && sha256sum -- *.deb"
    with engine_client.api_session("software.slurm") as api:
        container = api.create_container(
            names.image(NEWEST),
            ["sh", "-c", script],
            labels=engine_client.labels(plan.cluster, stack, {}),
            host_config=api.create_host_config(mounts=[mount], network_mode="none"),
        )["Id"]
        try:
            api.start(container)
            code = api.wait(container)["StatusCode"]
            if code != 0:
                problem = api.logs(container, stdout=False).decode(errors="replace").strip()
                raise ResourceError("software.slurm", f"the packages cannot be copied to {folder}: {problem}", "")
            # A warning is not a sum.
            sums: str = api.logs(container, stderr=False).decode(errors="replace").strip()
        finally:
            remove_container(api, container)
    return PublishedPackages(folder, sums)


@dataclass(frozen=True)
class MachineArgs:
    """What a machine for a while is made of: the twin of a controller, or one that builds or tests an image."""

    cluster: str
    stack: str
    host: str
    """Its host name; a twin has that of the controller."""
    image: str
    cpus: int
    memory_mb: int
    name: str = _TWIN
    """Name of the container within the cluster."""
    network: str = "none"
    mounts: tuple[Mapping[str, str | bool], ...] = ()
    """Volumes, each with `volume`, `target` and perhaps `read_only`."""


@contextmanager
def open_machine(args: MachineArgs) -> Iterator[ContainerTransport]:
    """Start a container that boots from an image, by default without a network; remove it at the end."""
    name, tree = names.container(args.cluster, args.name), f"{args.cluster}-{args.name}"
    props: dict[str, Any] = {
        "cluster": args.cluster, "stack": args.stack, "node": args.host, "role": args.name,
        "image": args.image, "cpus": args.cpus, "memory_mb": args.memory_mb,
        "mounts": args.mounts,
    }  # fmt: skip
    with engine_client.api_session(args.name) as api:
        host = node_container.host_config(props, engine_client.engine(), api.api_version)
        host["NetworkMode"] = args.network
        options = node_container.options(props, engine_client.labels(args.cluster, args.stack, {}))
        # A twin has the host name of the controller, so its group in the host's tree must have another parent.
        options |= {"name": name, "environment": options["environment"] | {"MUSTER_CLUSTER": tree}}
        remove_container(api, name)
        try:
            api.create_container(**options, host_config=host)
            api.start(name)
            transport = ContainerTransport(name)
            _wait_for_systemd(transport, args.name)
            yield transport
        finally:
            remove_container(api, name)
            cgroup_tree.remove_cluster(tree)


class ContainerTransport:
    """A transport to a container through the Docker engine, without a network."""

    def __init__(self, container: str) -> None:
        self._container = container

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,  # noqa: ARG002  # no caller follows the output
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
        done = self.run(put_script(path, mode, owner, len(data)), stdin=data)
        if done.code != 0:
            raise TransportError(self._container, f"cannot write {path}: {done.err.strip()}")

    def get(self, path: str) -> bytes:
        return base64.b64decode(self.run(f"base64 {shlex.quote(path)}").out)

    def close(self) -> None:
        """Do nothing: every script has its own process."""


def _wait_for_systemd(transport: ContainerTransport, where: str) -> None:
    deadline = time.monotonic() + _BOOT_TIMEOUT_S
    while transport.run("systemctl is-system-running").out.strip() not in ("running", "degraded"):
        if time.monotonic() > deadline:
            raise ResourceError(where, f"its systemd is not up after {_BOOT_TIMEOUT_S:.0f} s", "run it again")
        time.sleep(_POLL_S)
