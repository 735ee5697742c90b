"""Run all benchmarks of the trainer: most in a container, some in two, recovery on a cluster.

python -m benchmarks.trainer [--only overhead,evaluation,document_masks,engines,pipeline,startup,checkpoint,
                                     collectives,compression,recovery]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from setup import env, pins
from setup.paths import Paths

REPO = Path(__file__).resolve().parent.parent

# These need torch and run in a node container; /disk is on the machine's disk, as checkpoints are.
IN_CONTAINER: dict[str, list[str]] = {
    "overhead": [],
    "evaluation": [],
    "document_masks": [],
    "engines": [],
    "pipeline": [],
    "startup": [],
    "checkpoint": ["--folder", "/disk"],
}
NAMES = (*IN_CONTAINER, "collectives", "compression", "recovery")


def main() -> int:
    """Run the selected benchmarks and return the highest exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(NAMES))
    names = parser.parse_args().only
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}; allowed: {', '.join(NAMES)}")
    codes = []
    for name in names:
        print(f"\n== {name}", flush=True)
        codes.append(run_in_container(name) if name in IN_CONTAINER else run_on_this_machine(name))
    return max(codes)


def run_in_container(name: str) -> int:
    """Run a benchmark in a node container and return its exit status."""
    paths = Paths(root=REPO, cache=Paths.from_environment().cache)
    python = f"/shared/env/{env.key(paths)}/bin/python"
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=paths.cache) as disk:
        mounts = ["-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "-v", f"{REPO}:/repo:ro", "-v", f"{disk}:/disk"]
        run = ["docker", "run", "--rm", "--init", "--network", "none", "--shm-size", "4g", "-w", "/here"]
        variables = ["-e", "GLOO_SOCKET_IFNAME=lo", "-e", "OMP_NUM_THREADS=1"]
        label = ["--label", "muster.cluster=bench-trainer"]
        # Byte-compile first, as on a cluster.
        prepare = f"cp -r /repo/trainer /repo/benchmarks /here && {python} -m compileall -q /here"
        script = f"{prepare} && exec {python} -m benchmarks.{name} {' '.join(IN_CONTAINER[name])}"
        command = [*run, *label, *variables, *mounts, pins.NODE_IMAGE, "sh", "-c", script]
        return subprocess.run(command, check=False).returncode


def run_on_this_machine(name: str) -> int:
    """Run a benchmark on this machine and return its exit status."""
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=REPO, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
