"""A minimal Ubuntu 22.04 as a Docker image, from Ubuntu's own archive: what AWS's images are made of."""

from __future__ import annotations

import os
import subprocess

from setup import pins
from setup.image import PROXIES

IMAGE = "muster-test-ubuntu:22.04"
LABEL = "muster.cache=image"
ARCHIVE = "http://archive.ubuntu.com/ubuntu"
BUILD_TIMEOUT_S = 600
# In a container of the base image: this machine's own debootstrap may lack Ubuntu's keys.
_CREATE = f"""set -eu
exec 3>&1 >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install -y --no-install-recommends debootstrap ubuntu-keyring
keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
debootstrap --variant=minbase --include=ca-certificates,python3 --keyring=$keys jammy /ubuntu {ARCHIVE}
for suite in jammy jammy-updates jammy-security; do
  echo "deb {ARCHIVE} $suite main restricted universe"
done >/ubuntu/etc/apt/sources.list
tar -C /ubuntu --numeric-owner --exclude=./proc/* --exclude=./sys/* -c . >&3
"""


def find_ubuntu_image() -> str:
    """Return the name of the image, and create it from Ubuntu's archive if this machine does not have it."""
    inspect = ["docker", "image", "inspect", IMAGE]
    if subprocess.run(inspect, capture_output=True, check=False).returncode == 0:
        return IMAGE
    flags = [word for name in PROXIES if name in os.environ for word in ("-e", name)]
    # debootstrap mounts /proc. Where this machine itself has not every capability, Docker refuses --privileged.
    mounts = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
    create = ["docker", "run", "--rm", "-i", *mounts, "--network", "host", *flags, pins.BASE_IMAGE, "sh", "-s"]
    with subprocess.Popen(create, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as creating:
        assert creating.stdin is not None
        creating.stdin.write(_CREATE.encode())
        creating.stdin.close()
        load = ["docker", "import", "-c", f"LABEL {LABEL}", "-", IMAGE]
        subprocess.run(load, stdin=creating.stdout, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
    if creating.returncode:
        # Docker also imports an archive without files; the next test would take it for the image.
        subprocess.run(["docker", "image", "rm", IMAGE], check=True, capture_output=True)
        raise RuntimeError(f"debootstrap failed with exit code {creating.returncode}; is {ARCHIVE} reachable?")
    return IMAGE
