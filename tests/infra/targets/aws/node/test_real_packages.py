"""The archive of packages with real apt: a machine without a network installs from it, in Ubuntu 22.04."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bootstrap import package_archive
from bootstrap.action import APT_GET, FETCH_LISTS
from bootstrap.steps.cloud import node_packages
from setup.image import PROXIES
from tests.ubuntu_image import find_ubuntu_image

TIMEOUT_S = 600

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2 * TIMEOUT_S)]

LABEL = "muster.test=node-packages"
SHARED = "/shared"
# A package of Slurm's that needs another one of the distribution, and the archive of all that were built.
BUILD = f"""set -eu
mkdir -p /tmp/slurm-smd/DEBIAN {SHARED}/built
printf '%s\\n' 'Package: slurm-smd' 'Version: 1-1' 'Architecture: all' 'Maintainer: muster' 'Depends: libjson-c5' \\
  'Description: stand-in' >/tmp/slurm-smd/DEBIAN/control
dpkg-deb -Znone --build /tmp/slurm-smd {SHARED}/built/slurm-smd_1-1_all.deb >/dev/null
tar -c -f {SHARED}/slurm.tar -C {SHARED}/built .
printf '#!/bin/sh\\n[ "$1 $2" = "nodes store" ] && cp "$3" {SHARED}/stored.tar\\n' >/usr/local/bin/store
chmod +x /usr/local/bin/store
NAMES=crun SLURM={SHARED}/slurm.tar MEMBERS='*/slurm-smd_*.deb' WORK=/var/cache/work NAME=nodes STORE=store
"""
MIRROR = "the mirror is asked"


def run_in_ubuntu(folder: Path, network: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root in a new container, whose output it prints."""
    flags = [word for name in PROXIES if name in os.environ for word in ("-e", name)]
    command = ["docker", "run", "--rm", "-i", "--label", LABEL, "--network", network, *flags]
    command += ["-v", f"{folder}:{SHARED}", find_ubuntu_image(), "sh", "-c", f"{script}"]
    return subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the controller's program has stored the archive."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "lists.sh").write_text(FETCH_LISTS)
    script = f"{BUILD}FETCH_LISTS=$(cat {SHARED}/lists.sh)\n{node_packages.SCRIPT}"
    done = run_in_ubuntu(folder, "host", script)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def install(names: str) -> str:
    script = package_archive.render_installation(
        APT_GET, f"--no-install-recommends {names} {SHARED}/built/*.deb", "/run/lists.lock", f"echo {MIRROR}; exit 1"
    )
    return f"set -e\nexport DEBIAN_FRONTEND=noninteractive\ncp {SHARED}/stored.tar {package_archive.ARCHIVE}\n{script}"


def test_a_machine_without_a_network_installs_packages_and_what_they_depend_on(shared: Path) -> None:
    query = "crun --version; dpkg-query -W -f '${Package} ${db:Status-Status}\\n' slurm-smd libjson-c5; ls /var/cache"
    done = run_in_ubuntu(shared, "none", f"{install('crun')}\n{query}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert MIRROR not in done.stdout
    assert "crun version" in done.stdout
    assert "libjson-c5 installed\nslurm-smd installed\n" in done.stdout
    assert "muster" not in done.stdout.rpartition("slurm-smd installed")[2]


def test_a_machine_asks_the_mirror_for_a_package_that_is_not_in_the_archive(shared: Path) -> None:
    done = run_in_ubuntu(shared, "none", install("crun stunnel4"))
    assert done.returncode == 1
    assert "Unable to locate package stunnel4" in done.stderr
    assert (
        f"the archive of packages does not suffice for this machine; using the package mirror\n{MIRROR}\n"
        in done.stdout
    )
