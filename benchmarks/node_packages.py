"""Measure how long real apt takes to install what a compute node on AWS lacks, in containers of Ubuntu 22.04 Server.

python -m benchmarks.node_packages [ARCHIVE]

ARCHIVE is the file of Slurm's packages that the controller stores, built by `test_slurm_build.py`; without it, nodes
install everything but Slurm. Disks and mirrors of EC2 are not measured, only this machine's.
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
from bootstrap.steps.cloud import mounts
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
# Three timed parts of what set-up does in one action; what a part has done, the next does not repeat.
_INSTALL = """set -eu
mkdir -p /etc/apt/apt.conf.d
printf %s {apt} >/etc/apt/apt.conf.d/99muster
{hold}
# Lists of the day on which an image was made are old.
rm -rf /var/lib/apt/lists/*
exec 3>&1 >/tmp/log 2>&1
TIMEFORMAT='%R %U %S'
export DEBIAN_FRONTEND=noninteractive
{{ time {{ {lists}
}} 2>&4; }} 4>&2 2>&3
{{ time {apt_get} install -y --download-only --no-install-recommends {names} 2>&4; }} 4>&2 2>&3
{{ time {{ {install}
}} 2>&4; }} 4>&2 2>&3
sed -n 's/^Fetched \\([0-9.]*\\) \\([kM]\\)B in .*/\\1 \\2/p' /tmp/log >&3
"""


@dataclass(frozen=True)
class Part:
    """Wall and processor time of a part of an installation, in seconds."""

    wall_s: float
    processor_s: float


@dataclass(frozen=True)
class Installation:
    """What one container took: package lists, downloads, and everything that dpkg does."""

    lists: Part
    download: Part
    install: Part
    fetched_mb: float

    @property
    def wall_s(self) -> float:
        return self.lists.wall_s + self.download.wall_s + self.install.wall_s

    @property
    def processor_s(self) -> float:
        return self.lists.processor_s + self.download.processor_s + self.install.processor_s


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


def list_missing(folder: Path) -> list[str]:
    """Return what a compute node of a cluster with EFS installs: missing packages, and files of Slurm's."""
    required = (*COMMON, *BY_ROLE["compute"], *COMPILER, *mounts.list_clients(["efs"]))
    names = [name for name in required if name not in SLURM]
    missing = run(_MISSING.format(names=" ".join(names)), folder).split()
    return [*missing, *(f"/slurm/{path.name}" for path in sorted(folder.glob("*.deb")))]


def measure(names: list[str], folder: Path) -> Installation:
    """Install packages in a new container."""
    install = install_packages(names).script
    listed = " ".join(names)
    script = _INSTALL.format(
        apt=quote(APT), hold=HOLD, lists=FETCH_LISTS, apt_get=APT_GET, names=listed, install=install
    )
    lines = [line.split() for line in run(script, folder).splitlines()]
    lists, download, installed = (Part(float(wall), float(user) + float(system)) for wall, user, system in lines[:3])
    fetched_mb = sum(float(number) / (1 if unit == "M" else 1000) for number, unit in lines[3:])
    return Installation(lists, download, installed, fetched_mb)


def make_figures(names: list[str], runs: list[Installation]) -> list[Figure]:
    """Return the medians over all runs, with their range."""

    def middle(name: str, values: list[float], unit: str = "s") -> Figure:
        return Figure(name, median(values), unit, f"{min(values):.1f} to {max(values):.1f} in {len(values)} runs")

    parts = [
        middle(f"{name}, {kind}", [getattr(getattr(run, part), field) for run in runs])
        for name, part in (("package lists", "lists"), ("download", "download"), ("installation", "install"))
        for kind, field in (("wall time", "wall_s"), ("processor time", "processor_s"))
    ]
    return [
        Figure("packages that a node lacks", len(names), "", ", ".join(name.rpartition("/")[2] for name in names)),
        middle(f"fetched from {ARCHIVE}", [run.fetched_mb for run in runs], "MB"),
        *parts,
        middle("all, processor time", [run.processor_s for run in runs]),
        middle("all, wall time", [run.wall_s for run in runs]),
    ]


def main(arguments: list[str]) -> int:
    """Measure several installations and print what they took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for archive in arguments[:1]:
            patterns = [f"./{package}_*" for package in NAMES["compute"]]
            subprocess.run(["tar", "-x", "-f", archive, "-C", folder, "--wildcards", *patterns], check=True)
        names = list_missing(folder)
        print(report(make_figures(names, [measure(names, folder) for _ in range(RUNS)])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
