"""The controller's build of Slurm with its real source, packaging and compiler, in a container of bare Debian.

Source and build dependencies come from this machine's Debian mirror; on AWS the build runs with packages of Ubuntu, in
other versions. Release 26.05 is not built here: mirrors keep a source of Debian's testing for some weeks only.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.bundle import INSTALLED
from bootstrap.steps.cloud import slurm_packages
from bootstrap.steps.cloud.slurm_packages import NAMES, PACKAGES, SOURCES, WORK, PackageBuild, list_names
from setup import pins
from setup.image import PROXIES

# The build takes 800 s of CPU time; on two cores with much other work it took 44 minutes.
TIMEOUT_S = 3600

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 120)]

RELEASE = "24.11"
LABEL = "muster.test=slurm-build"
SHARED = "/built"
BUILD = PackageBuild(RELEASE, "debian 13", (f"{SHARED}/store",), SHARED)
# The pool has the archive under the name that the source index gives it; apt checks its sum.
FETCH = """set -eu
export DEBIAN_FRONTEND=noninteractive
sed -i 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/*.sources
apt-get -q update
# Every image on AWS has it.
apt-get -q install -y --no-install-recommends python3 >/dev/null
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
apt-cache showsrc slurm-wlm >{shared}/index.txt
folder=$(sed -n 's/^Directory: //p' {shared}/index.txt | head -n 1)
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources | head -n 1)
archive=$mirror/$folder/slurm-wlm_{version}.orig.tar.gz
/usr/lib/apt/apt-helper download-file "$archive" {shared}/source.tar.gz SHA256:{sha256}
mkdir -p {installed}
"""
# Its arguments: the key of the archive, what to do, and the path.
STORE = """#!/bin/sh
[ "$2" = store ] || exit 1
cp "$3" /built/stored.tar
"""
STAND_INS = """set -eu
mkdir -p {installed} {work}/built
for name in {names}; do
  folder=$(mktemp -d)
  mkdir "$folder/DEBIAN"
  printf '%s\\n' "Package: $name" 'Version: {version}-1' 'Architecture: all' 'Maintainer: muster' \\
    'Description: stand-in' >"$folder/DEBIAN/control"
  case $name in
    slurm-smd) programs='sbin/slurmctld sbin/slurmd sbin/slurmdbd bin/srun' ;;
    *-adopt) programs=lib/test/security/pam_slurm_adopt.so ;;
    *) programs= ;;
  esac
  for program in $programs; do
    install -D /dev/null "$folder/usr/$program"
    printf '#!/bin/sh\\necho slurm {version}\\n' >"$folder/usr/$program"
  done
  dpkg-deb -Znone --build "$folder" "{work}/built/${{name}}_{version}-1_all.deb" >/dev/null
done
tar -c -f {work}/{key}.tar -C {work}/built .
"""
INSTALL = """
apt-get -q install -y --no-install-recommends {packages}/*.deb >{shared}/install.log 2>&1 ||
  {{ cat {shared}/install.log; exit 1; }}
slurmctld -V
slurmd -V
slurmdbd -V
srun --version
ls /lib/*/security/pam_slurm_adopt.so
"""


def test_the_pinned_source_becomes_packages_that_install_and_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[RELEASE]
    # The same archive, checked against the same sum, from a file: nothing but the mirror is downloaded from.
    local = replace(source, addresses=(f"file://{SHARED}/source.tar.gz",))
    monkeypatch.setitem(slurm_packages.SOURCES, RELEASE, local)
    check_installed(
        tmp_path, FETCH.format(shared=SHARED, version=source.version, sha256=source.sha256, installed=INSTALLED)
    )
    assert f"{source.sha256} " in (tmp_path / "index.txt").read_text()


def test_packages_that_are_built_already_are_stored_and_installed(tmp_path: Path) -> None:
    """What follows the build, in seconds: with packages that contain only programs which print their version."""
    names = sorted({name for names in NAMES.values() for name in names})
    values = {"work": WORK, "key": BUILD.key, "names": " ".join(names), "version": SOURCES[RELEASE].version}
    check_installed(tmp_path, STAND_INS.format(**values, installed=INSTALLED))


def check_installed(folder: Path, prepare: str) -> None:
    """Run a script and then the one that builds Slurm; check that its packages are stored, install and start."""
    version = SOURCES[RELEASE].version
    script = f"{prepare}{SHARED}/build.sh\n{INSTALL.format(packages=PACKAGES, shared=SHARED)}"
    (folder / "build.sh").write_text(
        f"#!/bin/sh\n{BUILD.render_script('build', list_names(['controller', 'compute']))}"
    )
    (folder / "store").write_text(STORE)
    for name in ("build.sh", "store"):
        (folder / name).chmod(0o755)
    done = run_in_debian(folder, script)
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.splitlines()[-5:-1] == [f"slurm {version}"] * 4
    # Nodes find every package of every role in what the controller has stored.
    listed = subprocess.run(["tar", "-tf", folder / "stored.tar"], text=True, capture_output=True, check=True).stdout
    assert [name for names in NAMES.values() for name in names if f"./{name}_{version}" not in listed] == []


def run_in_debian(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root in a container of the base image, which is removed afterwards."""
    flags = [word for name in PROXIES if name in os.environ for word in ("-e", name)]
    command = ["docker", "run", "--rm", "-i", "--label", LABEL, "--network", "host", *flags, "-v", f"{folder}:{SHARED}"]
    return subprocess.run(
        [*command, pins.BASE_IMAGE, "sh", "-s"],
        input=script,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
