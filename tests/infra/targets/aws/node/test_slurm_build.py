"""The real build of Slurm on the controller: source, packaging and compiler, in containers of Ubuntu 22.04 and Debian.

The source comes from this machine's Debian mirror, or from the file that a variable names; build dependencies come
from the archive of the container's distribution.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.bundle import INSTALLED
from bootstrap.steps.cloud import slurm_packages
from bootstrap.steps.cloud.slurm_packages import NAMES, PACKAGES, SOURCES, WORK, PackageBuild, SlurmSource, list_names
from setup import pins
from setup.image import PROXIES
from tests.ubuntu_image import find_ubuntu_image

# The build takes 800 s of CPU time; on two cores with much other work it took 44 minutes.
TIMEOUT_S = 3600

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 120)]

LABEL = "muster.test=slurm-build"
SHARED = "/built"
DEBIAN, UBUNTU = "debian 13", "ubuntu 22.04"
"""Distributions, as the facts of a machine name them."""
ARCHIVE = "MUSTER_TEST_SLURM_SOURCE"
"""Variable with the path of an archive of a tag of Slurm, which is built if Debian does not have the pinned version."""
# The pool has the archive under the name that the source index gives it; its sum is checked here and by the build.
FETCH = """set -eu
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources | head -n 1)
keyring=$(sed -n 's/^Signed-By: *//p' /etc/apt/sources.list.d/*.sources | head -n 1)
rm /etc/apt/sources.list.d/*.sources
# A mirror that is updated rarely has an index of testing that is past its date; its signature is checked.
printf '%s\\n' 'Types: deb-src' "URIs: $mirror" 'Suites: trixie forky' 'Components: main' "Signed-By: $keyring" \\
  'Check-Valid-Until: no' >/etc/apt/sources.list.d/source.sources
apt-get -q update
apt-cache showsrc slurm-wlm | awk -v RS= '/slurm-wlm_{version}[.]orig[.]tar[.]gz/' >{shared}/index.txt
# A mirror of testing drops a version as soon as there is a newer one, even before its index does.
archive=$mirror/pool/main/s/slurm-wlm/slurm-wlm_{version}.orig.tar.gz
if /usr/lib/apt/apt-helper download-file "$archive" {shared}/source.tar.gz SHA256:{sha256} >{shared}/download.log 2>&1
then exit 0; fi
cat {shared}/download.log
! grep -q 'Hash Sum mismatch' {shared}/download.log || exit 1
exit {no_source}
"""
NO_SOURCE = 3
"""Exit code of FETCH if the mirror cannot be asked for this version, or does not have it."""
PREPARE = """set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
# Every image on AWS has it.
apt-get -q install -y --no-install-recommends python3 >/dev/null
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
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


# Nodes on AWS run Ubuntu; Debian 13 has packages of 24.11, so a failure there is one of our script.
@pytest.mark.parametrize(("distribution", "release"), [(UBUNTU, "26.05"), (UBUNTU, "24.11"), (DEBIAN, "24.11")])
def test_the_pinned_source_becomes_packages_that_install_and_start(
    distribution: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fetch_source(SOURCES[release], tmp_path)
    # The same archive, checked against the same sum, from a file: only distributions' archives are downloaded from.
    local = replace(source, addresses=(f"file://{SHARED}/source.tar.gz",))
    monkeypatch.setitem(slurm_packages.SOURCES, release, local)
    build = PackageBuild(release, distribution, (f"{SHARED}/store",), SHARED)
    check_installed(tmp_path, build, PREPARE.format(installed=INSTALLED))


def test_packages_that_are_built_already_are_stored_and_installed(tmp_path: Path) -> None:
    """What follows the build, in seconds: with packages that contain only programs which print their version."""
    build = PackageBuild("24.11", DEBIAN, (f"{SHARED}/store",), SHARED)
    names = sorted({name for names in NAMES.values() for name in names})
    values = {"work": WORK, "key": build.key, "names": " ".join(names), "version": SOURCES[build.release].version}
    check_installed(tmp_path, build, STAND_INS.format(**values, installed=INSTALLED))


def fetch_source(source: SlurmSource, folder: Path) -> SlurmSource:
    """Put the archive of a source into a folder, or that of the variable if the mirror lacks it; return what it is."""
    fetch = FETCH.format(shared=SHARED, version=source.version, sha256=source.sha256, no_source=NO_SOURCE)
    fetched = run_in(pins.BASE_IMAGE, folder, fetch)
    if fetched.returncode != NO_SOURCE:
        assert fetched.returncode == 0, fetched.stdout[-6000:]
        index = (folder / "index.txt").read_text()
        assert not index or f"{source.sha256} " in index
        return source
    if ARCHIVE not in os.environ:
        pytest.skip(f"this machine's Debian mirror lacks slurm {source.version}; set {ARCHIVE} to the archive of a tag")
    archive = Path(shutil.copy(os.environ[ARCHIVE], folder / "source.tar.gz"))
    other = replace(source, version=read_version(archive), sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    if other.version.rpartition(".")[0] != source.version.rpartition(".")[0]:
        pytest.skip(f"{os.environ[ARCHIVE]} has slurm {other.version}, not the release of {source.version}")
    return other


def read_version(archive: Path) -> str:
    """Return the version of Slurm that an archive contains."""
    with tarfile.open(archive) as files:
        (meta,) = [name for name in files.getnames() if name.count("/") == 1 and name.endswith("/META")]
        file = files.extractfile(meta)
        assert file
        text = file.read().decode()
    return re.findall(r"^\s*Version:\s*(\S+)$", text, re.MULTILINE)[0]


def check_installed(folder: Path, build: PackageBuild, prepare: str) -> None:
    """Run a script and then the one that builds Slurm; check that its packages are stored, install and start."""
    version = SOURCES[build.release].version
    script = f"{prepare}{SHARED}/build.sh\n{INSTALL.format(packages=PACKAGES, shared=SHARED)}"
    (folder / "build.sh").write_text(
        f"#!/bin/sh\n{build.render_script('build', list_names(['controller', 'compute']))}"
    )
    (folder / "store").write_text(STORE)
    for name in ("build.sh", "store"):
        (folder / name).chmod(0o755)
    image = find_ubuntu_image() if build.distribution == UBUNTU else pins.BASE_IMAGE
    done = run_in(image, folder, script)
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.splitlines()[-5:-1] == [f"slurm {version}"] * 4
    # Nodes find every package of every role in what the controller has stored.
    listed = subprocess.run(["tar", "-tf", folder / "stored.tar"], text=True, capture_output=True, check=True).stdout
    assert [name for names in NAMES.values() for name in names if f"./{name}_{version}" not in listed] == []


def run_in(image: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root in a container of an image, which is removed afterwards."""
    flags = [word for name in PROXIES if name in os.environ for word in ("-e", name)]
    command = ["docker", "run", "--rm", "-i", "--label", LABEL, "--network", "host", *flags, "-v", f"{folder}:{SHARED}"]
    return subprocess.run(
        [*command, image, "sh", "-s"],
        input=script,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
    )
