"""Setup on a systemd machine with the files and programs of a GPU node: it checks their versions."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from hashlib import sha256

import pytest

from bootstrap import bundle as bundle_files
from bootstrap.bundle import Bundle, pack_node
from bootstrap.wheels import fetch_wheels
from cluster.catalog.software import components
from cluster.inventory import Inventory, NodeGpus
from infra.home import Home
from infra.targets.aws.build.bundle import NODE_FOLDERS
from infra.targets.aws.node import parameters
from tests.cluster.catalog.software_output import GOOD, OPEN_DRIVER
from tests.harness import REPO
from tests.infra.targets.aws.node.machines import BUCKET, Machines

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

DRIVER = "/proc/driver/nvidia/version"
OLD_DRIVER = OPEN_DRIVER.replace("580.126.09", "535.183.06")
TABLE = "cluster/catalog/data/software.yaml"
ARCHIVE = "/var/tmp/aws-efa-installer-1.50.0.tar.gz"
# A container has the /proc and /sys of its host: mount empty folders over those that a GPU node would have.
MOUNT_OVERLAYS = "mount -t tmpfs none /proc/driver && mount -t tmpfs none /sys/module"
# A fake vendor installer. ldconfig lists only real libraries by the name inside, so one of libc's is renamed.
INSTALLER = f"""\
#!/bin/sh
set -eu
mkdir -p /opt/amazon/efa/bin /opt/amazon/ofi-nccl/lib /sys/module/efa
cat > /opt/amazon/efa_installed_packages <<'TEXT'
{GOOD["efa_installer"]}TEXT
echo 3.3.0g > /sys/module/efa/version
cat > /opt/amazon/efa/bin/fi_info <<'PROGRAM'
#!/bin/sh
cat <<'OUT'
{GOOD["libfabric"]}OUT
PROGRAM
chmod +x /opt/amazon/efa/bin/fi_info
python3 - <<'LIBRARY'
import glob, pathlib
library = pathlib.Path(glob.glob("/lib/*-linux-gnu/libpthread.so.0")[0]).read_bytes()
renamed = library.replace(b"libpthread.so.0\\0", b"libnccl-net.so\\0\\0")
place = pathlib.Path("/opt/amazon/ofi-nccl/lib/libnccl-net.so")
place.write_bytes(renamed + b"NET/OFI Initializing aws-ofi-nccl 1.21.1\\0")
LIBRARY
echo /opt/amazon/ofi-nccl/lib > /etc/ld.so.conf.d/100_ofinccl.conf
"""


@pytest.fixture(scope="module")
def plain(cloud: Machines) -> Bundle:
    cloud.boot("controller", "controller")
    cloud.boot("gpu-1", "compute")
    return cloud.ship()


@pytest.fixture(scope="module")
def installer() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("aws-efa-installer/efa_installer.sh")
        entry.size, entry.mode = len(INSTALLER.encode()), 0o755
        tar.addfile(entry, io.BytesIO(INSTALLER.encode()))
    return packed.getvalue()


@pytest.fixture(scope="module")
def bundle(cloud: Machines, plain: Bundle, installer: bytes) -> Bundle:
    """Return a bundle for a node with GPUs, NVLink and EFA; the installer's archive is on its own disk."""
    files = cloud._files()
    inventory = Inventory.model_validate_json(files[bundle_files.INVENTORY])
    hardware = {"gpus": NodeGpus(count=8, kind="real"), "fabric": "efa", "nvlinks": 18}
    sets = tuple(entry.model_copy(update=hardware) for entry in inventory.sets)
    files[bundle_files.INVENTORY] = inventory.model_copy(update={"sets": sets}).model_dump_json().encode()
    install = components()["efa_installer"].install
    assert install
    table = (REPO / TABLE).read_text().replace(install.address, f"file://{ARCHIVE}")
    files[TABLE] = table.replace(install.sha256, sha256(installer).hexdigest()).encode()
    packed_bundle = pack_node(REPO, fetch_wheels(REPO, Home.of(os.environ).cache), files, NODE_FOLDERS)
    cloud.moto.client("s3").put_object(
        Bucket=BUCKET, Key=parameters.bundle(packed_bundle.sha256), Body=packed_bundle.archive
    )
    return packed_bundle


@pytest.fixture(scope="module")
def gpu_node_files(cloud: Machines, bundle: Bundle, installer: bytes) -> None:
    """Prepare a machine with an old driver and without EFA."""
    _do(cloud, MOUNT_OVERLAYS)
    _write(cloud, DRIVER, OLD_DRIVER)
    _program(cloud, "/usr/bin/nv-fabricmanager", GOOD["fabric_manager"])
    _program(cloud, "/usr/local/sbin/modprobe", "")
    cloud.put("gpu-1", ARCHIVE, installer)


def test_an_old_driver_fails_set_up_and_is_reported(cloud: Machines, bundle: Bundle, gpu_node_files: None) -> None:
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 3, done.out
    report = cloud.report("gpu-1")
    assert (report.state, report.step) == ("failed", "software")
    assert report.line.startswith(
        "node gpu-1, step software: NVIDIA driver 535.183.06; allowed: 580 or newer (the training environment has CUDA "
        "13, which older branches cannot run); NVIDIA fabric manager 580.126.09; allowed: 535.183.06, the version of "
    )
    assert "Fix: set `aws.ami` to an image that has the required versions" in report.line
    assert cloud.do("gpu-1", "test -e /etc/muster/fabric.env").code == 1, "setup changed a machine that it rejects"


def test_with_the_right_driver_efa_is_installed_and_the_node_becomes_ready(
    cloud: Machines, plain: Bundle, bundle: Bundle, gpu_node_files: None
) -> None:
    ready = cloud.run("controller", cloud.script(plain, "controller"))
    assert ready.code == 0, ready.out
    _write(cloud, DRIVER, OPEN_DRIVER)
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 0, done.out
    assert cloud.report("gpu-1").state == "ready"
    assert "muster: software changed install EFA installer 1.50.0" in done.out
    versions = json.loads(cloud.do("gpu-1", "cat /etc/muster/expected.json").out)["software"]
    assert {name: entry["version"] for name, entry in versions.items()} == {
        "driver": "580.126.09",
        "fabric_manager": "580.126.09",
        "efa_installer": "1.50.0",
        "efa": "3.3.0",
        "libfabric": "2.6.0",
        "aws_ofi_nccl": "1.21.1",
        "nccl": "2.30.7",
    }
    assert "NCCL_NET=Libfabric\n" in cloud.do("gpu-1", "cat /etc/muster/fabric.env").out

    again = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert again.code == 0, again.out
    assert re.findall(r"muster: (\S+) changed", again.out) == []

    assert "health: software" not in cloud.do("gpu-1", "/etc/muster/prolog").out
    _write(cloud, DRIVER, OLD_DRIVER)
    prolog = cloud.do("gpu-1", "/etc/muster/prolog")
    assert prolog.code == 1
    changed = "driver is no longer 580.126.09: /proc/driver/nvidia/version shows 'NVRM version"
    assert f"health: software: {changed}" in prolog.out


def _do(cloud: Machines, script: str) -> None:
    done = cloud.do("gpu-1", script)
    assert done.code == 0, done.out


def _write(cloud: Machines, path: str, text: str) -> None:
    """Write a file with a shell in the machine: `put` does not write into folders mounted there."""
    _do(cloud, f"mkdir -p {path.rpartition('/')[0]} && cat > {path} <<'TEXT'\n{text}TEXT")


def _program(cloud: Machines, path: str, output: str) -> None:
    _write(cloud, path, f"#!/bin/sh\ncat <<'OUT'\n{output}OUT\n")
    _do(cloud, f"chmod +x {path}")
