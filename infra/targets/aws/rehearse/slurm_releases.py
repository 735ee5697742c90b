"""Releases of Slurm that machines of a rehearsal can install besides that of their image.

Nothing is compiled in a rehearsal. The packages that the controller builds are stand-ins; the programs behind them come
from the node image of the newest release, which has Debian's packages of all releases.
"""

from __future__ import annotations

from collections.abc import Mapping

from docker.types import Mount

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.short_container import run_short_container
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.upgrade import IMAGE_PACKAGES, NEWEST, check_release

FOLDER = "/rehearsal/slurm"
"""Folder on the machines with a folder of packages per release."""


def publish_releases(cluster: str, labels: Mapping[str, str]) -> str:
    """Copy the packages of all releases to a Docker volume and return its name; raise ResourceError without them."""
    check_release(NEWEST)
    volume = names.volume(cluster, "slurm")
    with engine_client.api_session("slurm") as api:
        api.create_volume(volume, labels=dict(labels))
    mounts = [Mount(FOLDER, volume, type="volume")]
    code, output = run_short_container(f"cp -r {IMAGE_PACKAGES}/. {FOLDER}", mounts, labels, image=names.image(NEWEST))
    if code:
        raise ResourceError("", f"the packages of Slurm cannot be copied: {output[-500:]}", "rehearse again")
    return volume
