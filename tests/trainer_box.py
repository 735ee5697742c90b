"""Run the trainer's tests in a node container: the nodes' own Python and torch, and no network but loopback.

.venv/bin/python -m tests.trainer_box tests/trainer/test_config_check.py -x
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import IO

from setup import env, pins
from setup.image import PROXIES
from setup.paths import Paths

REPO = Path(__file__).resolve().parent.parent
LOCK = "tests/trainer/requirements.lock"
# The test runner's packages are next to the training environment on the same volume; a `.pth` file joins the two.
MAKE_TOOLS = """set -eu
[ ! -e "$TOOLS/.complete" ] || exit 0
# Two checkouts may run at once: the second one waits and finds the tools complete.
exec 9>"$TOOLS.lock"
flock 9
[ ! -e "$TOOLS/.complete" ] || exit 0
rm -rf "$TOOLS"
"$TRAINING/bin/python" -m venv "$TOOLS"
"$TOOLS/bin/python" -m pip install -q --no-cache-dir --require-hashes --no-deps --disable-pip-version-check \\
  -r "/repo/$LOCK"
site=$("$TOOLS/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$TRAINING/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/training.pth"
: >"$TOOLS/.complete"
"""
# Python writes bytecode next to the sources, and without it every rank compiles the trainer again. So the tests run on
# a copy of the repository.
COPY_AND_RUN = """set -eu
tar -C /repo --exclude=./.venv --exclude=./.git -c . | tar -C "$PWD" -x
exec "$@"
"""
# A disk that a test can fill without harm to the others.
SMALL_DISK = "/small"
VARIABLES = (
    "OMP_NUM_THREADS=1",
    "PYTEST_ADDOPTS=-p no:cacheprovider",
    "GLOO_SOCKET_IFNAME=lo",
    f"MUSTER_SMALL_DISK={SMALL_DISK}",
)
LABEL = ("--label", "muster.cluster=trainer-tests")


def run(options: list[str], report: Path | None = None, output: IO[str] | None = None) -> int:
    """Run pytest in the container and return its exit code; `report` is the JUnit file on this side."""
    make_tools(Paths(root=REPO, cache=Paths.from_environment().cache))
    where = ["-v", f"{report.parent}:/report"] if report else []
    junit = [f"--junit-xml=/report/{report.name}"] if report else []
    flags = [word for variable in VARIABLES for word in ("-e", variable)]
    box = ["--init", *LABEL, "--network", "none", "--shm-size", "4g", "--tmpfs", "/tmp:exec,size=8g", "-w", "/copy"]
    box += ["--tmpfs", f"{SMALL_DISK}:size=2m"]
    pytest = [f"{tools()}/bin/python", "-m", "pytest", *(options or ["tests/trainer", "-q"]), *junit]
    command = ["docker", "run", "--rm", *box, *mounts(), *where, *flags, pins.NODE_IMAGE]
    command += ["sh", "-c", COPY_AND_RUN, "sh", *pytest]
    return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT if output else None, check=False).returncode


def make_tools(paths: Paths) -> None:
    """Install the test runner on the volume, unless it is there."""
    variables = {"TOOLS": tools(), "TRAINING": f"/shared/env/{env.key(paths)}", "LOCK": LOCK, **env.pip_settings(paths)}
    # Only names: values may hold passwords, and every user of the machine can read command lines.
    flags = [word for name in [*variables, *PROXIES] for word in ("-e", name)]
    command = ["docker", "run", "--rm", *LABEL, "--network", "host", *mounts(), *flags, pins.NODE_IMAGE]
    subprocess.run([*command, "sh", "-c", MAKE_TOOLS], check=True, env={**os.environ, **variables})


def mounts() -> list[str]:
    """Return the Docker options that mount the environments and the repository."""
    return ["-v", f"{pins.ENV_VOLUME}:/shared/env", "-v", f"{REPO}:/repo:ro"]


def tools() -> str:
    """Return the folder of the test runner, named after both locks."""
    locks = (REPO / env.LOCK).read_bytes() + (REPO / LOCK).read_bytes()
    return f"/shared/env/tests-{sha256(locks).hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
