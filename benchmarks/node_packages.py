"""Measure how long real apt takes to install what a compute node on AWS lacks, in containers of Ubuntu 22.04 Server.

python -m benchmarks.node_packages [ARCHIVE]

Nodes install twice: from the archive of the distribution's packages that the controller stores, and from package lists.
ARCHIVE is the file of Slurm's packages that the controller stores, built by `test_slurm_build.py`; without it, nodes
install everything but Slurm. Disks, mirrors and the store of AWS are not measured, only this machine's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from statistics import median

from benchmarks.figures import Figure, report
from bootstrap.action import APT_GET, FETCH_LISTS, install_packages
from bootstrap.package_archive import ARCHIVE as NODE_ARCHIVE
from bootstrap.steps.cloud import mounts, node_packages
from bootstrap.steps.cloud.slurm_packages import NAMES
from bootstrap.steps.cloud.system import APT, HOLD
from bootstrap.steps.packages import BY_ROLE, COMMON, COMPILER, SLURM
from tests.ubuntu_image import ARCHIVE, find_ubuntu_image

RUNS = 5
IMAGE = "muster-bench-ubuntu-server:22.04"
"""Ubuntu 22.04 with the packages of its servers, from which AWS's images are made."""
_SERVER = """set -eu
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
apt-get -q update
apt-get -q install -y ubuntu-standard ubuntu-server cloud-init openssh-server
rm /usr/sbin/policy-rc.d
apt-get clean
"""
_MISSING = """for name in {names}; do
  case $(dpkg-query -W -f '${{db:Status-Status}}' $name 2>/dev/null) in installed) ;; *) echo $name ;; esac
done
"""
_PREPARE = """set -eu
mkdir -p /etc/apt/apt.conf.d /run/muster
printf %s {apt} >/etc/apt/apt.conf.d/99muster
{hold}
# Lists of the day on which an image was made are old.
rm -rf /var/lib/apt/lists/*
exec 3>&1 >/tmp/log 2>&1
TIMEFORMAT='%R %U %S'
export DEBIAN_FRONTEND=noninteractive
"""
# Three timed parts of what set-up does in one action; what a part has done, the next does not repeat.
_INSTALL = """{{ time {{ {lists}
}} 2>&4; }} 4>&2 2>&3
{{ time {apt_get} install -y --download-only --no-install-recommends {names} 2>&4; }} 4>&2 2>&3
{{ time {{ {install}
}} 2>&4; }} 4>&2 2>&3
sed -n 's/^Fetched \\([0-9.]*\\) \\([kM]\\)B in .*/\\1 \\2/p' /tmp/log >&3
"""
# What the controller does once, and then a node.
_ARCHIVE_NAME = "nodes.tar"
_STORE = "/usr/local/bin/store"
_MAKE_ARCHIVE = f"""printf '#!/bin/sh\\ncp "$3" /slurm/{_ARCHIVE_NAME}\\n' >{_STORE}
chmod +x {_STORE}
{{{{ time sh -c {{script}} </dev/null 2>&4; }}}} 4>&2 2>&3
"""
_INSTALL_FROM_ARCHIVE = f"""cp /slurm/{_ARCHIVE_NAME} {NODE_ARCHIVE}
{{{{ time {{{{ {{install}}
}}}} 2>&4; }}}} 4>&2 2>&3
if grep -q 'using the package mirror' /tmp/log; then cat /tmp/log >&4; exit 1; fi
"""


@dataclass(frozen=True)
class Part:
    """Wall and processor time of a part of an installation, in seconds."""

    wall_s: float
    processor_s: float


@dataclass(frozen=True)
class Installation:
    """What one container took with package lists: the lists, downloads, and everything that dpkg does."""

    lists: Part
    download: Part
    install: Part
    fetched_mb: float

    @property
    def all(self) -> Part:
        parts = (self.lists, self.download, self.install)
        return Part(sum(part.wall_s for part in parts), sum(part.processor_s for part in parts))


def find_server_image() -> str:
    """Return the image of a server, and create it if this machine does not have it."""
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        start = ["docker", "create", "-i", "--network", "host", find_ubuntu_image(), "bash", "-s"]
        container = subprocess.run(start, check=True, capture_output=True, text=True).stdout.strip()
        try:
            subprocess.run(
                ["docker", "start", "-a", "-i", container], input=_SERVER.encode(), stdout=sys.stderr, check=True
            )
            subprocess.run(["docker", "commit", container, IMAGE], check=True, capture_output=True)
        finally:
            subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    return IMAGE


def run(script: str, folder: Path) -> str:
    """Run a script as root in a new container of the server, and return its output."""
    command = ["docker", "run", "--rm", "-i", "--network", "host", "-v", f"{folder}:/slurm", find_server_image()]
    return subprocess.run([*command, "bash", "-s"], input=script, text=True, stdout=subprocess.PIPE, check=True).stdout


def list_required() -> list[str]:
    """Return the distribution's packages that nodes of a cluster with EFS may lack."""
    names = (*COMMON, *BY_ROLE["compute"], *COMPILER, *mounts.list_clients(["efs"]))
    return [name for name in names if name not in SLURM]


def list_missing(required: list[str], folder: Path) -> list[str]:
    """Return what a compute node of a cluster with EFS installs: missing packages, and files of Slurm's."""
    missing = run(_MISSING.format(names=" ".join(required)), folder).split()
    return [*missing, *(f"/slurm/{path.name}" for path in sorted(folder.glob("*.deb")))]


def measure_with_lists(names: list[str], folder: Path) -> Installation:
    """Install packages in a new container, from the mirror."""
    install = install_packages(names).script
    script = _INSTALL.format(lists=FETCH_LISTS, apt_get=APT_GET, names=" ".join(names), install=install)
    lines = _run_prepared(script, folder)
    fetched_mb = sum(float(number) / (1 if unit == "M" else 1000) for number, unit in lines[3:])
    lists, download, installed = (_read_part(line) for line in lines[:3])
    return Installation(lists, download, installed, fetched_mb)


def make_archive(required: list[str], folder: Path) -> Part:
    """Make the archive in a new container, as the controller does."""
    values = {
        "NAMES": " ".join(required),
        "SLURM": "",
        "MEMBERS": "",
        "WORK": "/var/muster-work",
        "FETCH_LISTS": FETCH_LISTS,
        "NAME": _ARCHIVE_NAME,
        "STORE": _STORE,
    }
    assignments = "".join(f"{name}={quote(value)}\n" for name, value in values.items())
    script = _MAKE_ARCHIVE.format(script=quote(f"{assignments}{node_packages.SCRIPT}"))
    return _read_part(_run_prepared(script, folder)[0])


def measure_with_archive(names: list[str], folder: Path) -> Part:
    """Install packages in a new container, from the archive."""
    install = install_packages(names, archive=True).script
    return _read_part(_run_prepared(_INSTALL_FROM_ARCHIVE.format(install=install), folder)[0])


def make_figures(
    names: list[str], runs: list[Installation], making: Part, archive_mb: float, archived: list[Part]
) -> list[Figure]:
    """Return the medians over all runs, with their range."""

    def middle(name: str, values: list[float], unit: str = "s") -> Figure:
        return Figure(name, median(values), unit, f"{min(values):.1f} to {max(values):.1f} in {len(values)} runs")

    def middles(name: str, parts: list[Part]) -> list[Figure]:
        return [
            middle(f"{name}, wall time", [part.wall_s for part in parts]),
            middle(f"{name}, processor time", [part.processor_s for part in parts]),
        ]

    return [
        Figure("packages that a node lacks", len(names), "", ", ".join(name.rpartition("/")[2] for name in names)),
        middle(f"fetched from {ARCHIVE}", [run.fetched_mb for run in runs], "MB"),
        *middles("package lists", [run.lists for run in runs]),
        *middles("download", [run.download for run in runs]),
        *middles("installation with lists", [run.install for run in runs]),
        *middles("all three", [run.all for run in runs]),
        Figure("the controller's archive", archive_mb, "MB", "fetching it from the bucket is not measured"),
        Figure("making the archive, wall time", making.wall_s, "s", "on the controller, with package lists"),
        Figure("making the archive, processor time", making.processor_s, "s", ""),
        *middles("installation from the archive", archived),
    ]


def main(arguments: list[str]) -> int:
    """Measure several installations of both kinds, in turn, and print what they took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for archive in arguments[:1]:
            patterns = [f"./{package}_*" for package in NAMES["compute"]]
            subprocess.run(["tar", "-x", "-f", archive, "-C", folder, "--wildcards", *patterns], check=True)
        required = list_required()
        names = list_missing(required, folder)
        making = make_archive([*required, *(name for name in names if name.endswith(".deb"))], folder)
        pairs = [(measure_with_lists(names, folder), measure_with_archive(names, folder)) for _ in range(RUNS)]
        archive_mb = (folder / _ARCHIVE_NAME).stat().st_size / 1e6
        print(report(make_figures(names, [run for run, _ in pairs], making, archive_mb, [part for _, part in pairs])))
    return 0


def _run_prepared(script: str, folder: Path) -> list[list[str]]:
    """Run a script on a server with the settings of set-up; return the words of each line that it prints."""
    return [line.split() for line in run(_PREPARE.format(apt=quote(APT), hold=HOLD) + script, folder).splitlines()]


def _read_part(line: list[str]) -> Part:
    wall, user, system = (float(word) for word in line)
    return Part(wall, user + system)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
