"""Filesystems of a rehearsal: each is a Docker volume that has the training environment of this machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from docker.types import Mount

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.machine import ENVIRONMENTS
from infra.targets.aws.rehearse.short_container import run_short_container
from infra.targets.local import docker_engine as engine_client

# The environment of AWS's nodes is the cached one, apart from its interpreter.
_PREPARE = """set -eu
cached={cached} environment=/fs/env/{pinned}
mkdir -p "$environment/bin"
ln -sfn "$cached" "/fs/env/${{cached##*/}}"
for file in "$cached"/.complete "$cached"/*; do [ "${{file##*/}}" = bin ] || ln -sfn "$file" "$environment/"; done
for file in "$cached"/bin/*; do ln -sfn "$file" "$environment/bin/"; done
rm "$environment/bin/python"
cat >"$environment/bin/python" <<'PYTHON'
{python}PYTHON
chmod 755 "$environment/bin/python"
"""
# Machines have no GPU that computes: the ready gate runs without the part for GPUs.
_PYTHON = """\
#!/bin/bash
if [ "${{*:1:2}} ${{*: -1}}" = '-m trainer.gate gpu' ]; then set -- "${{@:1:$#-1}}"; fi
exec {cached}/bin/python "$@"
"""


@dataclass
class StorageVolumes:
    """The volumes of a rehearsal's filesystems, by id."""

    cluster: str
    """Name of the rehearsal in Docker."""
    labels: Mapping[str, str]
    cached: str
    """Folder name of the cached environment."""
    pinned: str
    """Folder name under which nodes on AWS look for it."""
    prepared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def prepare(self, ids: Sequence[str]) -> list[str]:
        """Create the volumes of filesystems that have none yet, and return all ids."""
        with self._lock:
            for id_ in ids:
                if id_ not in self.prepared:
                    self._create(id_)
                    self.prepared.add(id_)
        return list(ids)

    def _create(self, id_: str) -> None:
        volume, environments = names.volume(self.cluster, id_), names.ENV_CACHE_VOLUME
        with engine_client.api_session("storage") as api:
            api.create_volume(volume, labels=dict(self.labels))
        mounts = [
            Mount("/fs", volume, type="volume"),
            Mount(ENVIRONMENTS, environments, type="volume", read_only=True),
        ]
        code, output = run_short_container(render_script(self.cached, self.pinned), mounts, self.labels)
        if code:
            raise ResourceError("", f"filesystem {id_} cannot be prepared: {output[-500:]}", "rehearse again")


def render_script(cached: str, pinned: str, environments: str = ENVIRONMENTS) -> str:
    """Return the script that makes the cached environment appear in a filesystem."""
    folder = f"{environments}/{cached}"
    return _PREPARE.format(cached=folder, pinned=pinned, python=_PYTHON.format(cached=folder))
