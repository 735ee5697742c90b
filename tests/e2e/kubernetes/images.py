"""Images for the nodes of a test's cluster: exported from the Docker engine, unpacked once, without a registry."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setup import env, pins
from setup.paths import Paths
from tests import trainer_box
from tests.e2e.kubernetes.processes import find_processes
from tests.harness import wait_until

REPO = Path(__file__).resolve().parents[3]
PAUSE_IMAGE = "docker.io/library/muster-test-pause:1"
TRAINER_IMAGE = "muster-test-trainer:1"
# The packages of the image of trainer/Dockerfile take 6 GB. Nodes have them on the volume of the training environment.
_TRAINER = """FROM {base}
COPY trainer /opt/muster/trainer
ENV PATH={environment}/bin:{tools}/bin:/usr/bin:/bin PYTHONPATH=/opt/muster HOME=/tmp USER=muster PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
STOPSIGNAL SIGTERM
"""
_PAUSE = """FROM scratch
COPY busybox /busybox
CMD ["/busybox", "sleep", "2147483647"]
"""


def find_environment() -> tuple[Path, str]:
    """Return the folder of this machine with the training environment, and where containers must see it."""
    place = ["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", pins.ENV_VOLUME]
    return Path(subprocess.run(place, check=True, text=True, capture_output=True).stdout.strip()), "/shared/env"


def build_trainer() -> None:
    """Build the image of the trainer's code, whose packages are mounted; TensorBoard is among those for tests."""
    paths = Paths(root=REPO, cache=Paths.from_environment().cache)
    trainer_box.make_tools(paths)
    environment = f"/shared/env/{env.key(paths)}"
    dockerfile = _TRAINER.format(base=pins.NODE_IMAGE, environment=environment, tools=trainer_box.tools())
    _build(TRAINER_IMAGE, dockerfile, [REPO / "trainer"])


def build_pause(programs: Path) -> None:
    """Build the image of the containers that hold the network of a pod."""
    # In /bin or /usr/bin, by the release of the distribution.
    busybox = next((programs / "debian").glob("**/bin/busybox"))
    _build(PAUSE_IMAGE.rpartition("/")[2], _PAUSE, [busybox])


def unpack_images(names: Sequence[str], folder: Path) -> Path:
    """Unpack images of the Docker engine into a folder of containerd, and return it."""
    folder.mkdir()
    socket, data = folder / "run.sock", folder / "data"
    settings = folder / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{data}"\nstate = "{folder}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
    )
    ctr = ["ctr", f"--address={socket}", "--namespace=k8s.io"]
    with (folder / "log").open("wb") as log:
        command = ["unshare", "--mount", "containerd", f"--config={settings}"]
        containerd = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        answer = [*ctr, "version"]
        wait_until(lambda: subprocess.run(answer, check=False, capture_output=True).returncode == 0, "containerd")
        with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as saved:
            subprocess.run([*ctr, "images", "import", "-"], stdin=saved.stdout, check=True, capture_output=True)
        assert saved.returncode == 0
    finally:
        containerd.terminate()
        containerd.wait()
    assert not list(find_processes(str(settings)))
    return data


def read_base_spec(mounts: Sequence[tuple[Path, str]]) -> dict[str, Any]:
    """Return containerd's specification of a container with read-only mounts of folders of the machine."""
    done = subprocess.run(["ctr", "oci", "spec"], check=True, text=True, capture_output=True)
    spec: dict[str, Any] = json.loads(done.stdout)
    spec["mounts"] += [
        {"destination": path, "source": str(folder), "type": "bind", "options": ["rbind", "ro"]}
        for folder, path in mounts
    ]
    return spec


def _build(name: str, dockerfile: str, sources: Sequence[Path]) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(dockerfile)
        archive.addfile(entry, io.BytesIO(dockerfile.encode()))
        for source in sources:
            archive.add(source, source.name, filter=lambda e: None if "__pycache__" in e.name else e)
    command = ["docker", "build", "--label", "muster.cluster=kubernetes-tests", "--tag", name, "-"]
    # The legacy builder needs no plugin.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(command, input=context.getvalue(), check=True, capture_output=True, env=environment)
