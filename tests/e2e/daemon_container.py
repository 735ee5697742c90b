"""Containers that run Slurm's daemons without systemd, on a network of their own that is removed with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.models.containers import Container
from docker.models.networks import Network

from cluster import names
from cluster.spec.model import Software
from infra.targets.local.build.node_container import UNCONFINED

MOUNT_NAMESPACE = "/usr/local/lib/muster/mount-namespace.py"


@contextmanager
def daemon_network(cluster: str) -> Iterator[Network]:
    """Create a network for the containers of a cluster; when the block ends, remove them and the network."""
    client = docker.from_env()
    network = client.networks.create(cluster, driver="bridge", internal=True, labels={names.CLUSTER: cluster})
    try:
        yield network
    finally:
        for left in client.containers.list(all=True, filters={"label": f"{names.CLUSTER}={cluster}"}):
            left.remove(force=True)
        network.remove()


def start_container(
    cluster: str,
    hostname: str,
    script: str,
    folders: Mapping[Path | str, str],
    image: str = names.image(Software().slurm),
) -> Container:
    """Run a script in a container on a cluster's network; `folders` maps folders of this machine to read-only paths."""
    return docker.from_env().containers.run(
        image,
        # As in the image's entry.sh.
        ["python3", "-IS", MOUNT_NAMESPACE, "/usr/bin/bash", "-c", script],
        entrypoint="",
        detach=True,
        init=True,
        name=f"muster-{cluster}-{hostname}",
        hostname=hostname,
        network=cluster,
        # Without this name, each start of a daemon takes 10 s longer (bootstrap/steps/hosts.py).
        extra_hosts={"any-address": "0.0.0.0"},  # noqa: S104  # no address to listen on
        labels={names.CLUSTER: cluster},
        # Like nodes (infra/targets/local/build/node_container.py): slurmd mounts the private folders of each job, and
        # binds its tasks to cores.
        cap_add=["SYS_ADMIN", "SYS_NICE"],
        security_opt=list(UNCONFINED),
        volumes={str(folder): {"bind": path, "mode": "ro"} for folder, path in folders.items()},
    )
