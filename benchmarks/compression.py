"""Measure compressed gradients on two nodes with a slow link between them; needs Docker and the node image.

    python -m benchmarks.compression [--mbit 200] [--rounds 7] [--steps 500] [--methods none,topk,...]

Two containers of two gloo ranks each are the nodes, and the link between them is limited in both directions. Steps of
a model of 10 million parameters are timed: in each round, all methods take a step, so that all see the same load of
the machine. A time is that of the slowest rank; the table has medians, and the speed-up over whole gradients (none)
in the same round with its smallest and largest value. Bytes are those that a rank sends in a step, and those that a
node sends, read from its network interface. Then, without the limit, the tiny language model is trained with each
method for the same steps, from the same weights, on the same samples; the loss is the mean of the last 20 steps.

Bounds: topk sends at least 50 times fewer bytes than an fp32 all-reduce, its loss is at most 2 % above, and with 200
Mbit/s its step is at least 3 times faster.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from cluster import names
from setup import env, pins
from setup.paths import Paths

REPO = Path(__file__).resolve().parent.parent
NODES = 2
METHODS = ("none", "topk", "randomk", "powersgd", "bf16", "fp8", "int8")
COMPARED = ("none", "topk")
"""The methods whose losses have a bound."""
LABEL = f"{names.CLUSTER}=bench-compression"


def main() -> int:
    """Start the nodes, show what the first one prints, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link between the nodes")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each method")
    parser.add_argument("--steps", type=int, default=500, help="steps of the loss curves")
    parser.add_argument("--methods", type=check_methods, default=",".join(METHODS), help="of the loss curves")
    given = parser.parse_args()
    network = f"muster-compression-{uuid.uuid4().hex[:8]}"
    # Without a handler, SIGTERM would skip the clean-up below.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        create = ["docker", "network", "create", "--internal", "--label", LABEL, network]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        options = ["--mbit", str(given.mbit), "--rounds", str(given.rounds), "--steps", str(given.steps)]
        options += ["--methods", given.methods]
        nodes = [subprocess.Popen(make_command(network, node, options)) for node in range(NODES)]
        return max(node.wait() for node in nodes)
    finally:
        for node in range(NODES):
            subprocess.run(["docker", "rm", "-f", f"{network}-{node}"], check=False, capture_output=True)
        subprocess.run(["docker", "network", "rm", network], check=False, stdout=subprocess.DEVNULL)


def check_methods(text: str) -> str:
    """Return a list of methods, separated by commas, unless the figures cannot be computed from it."""
    given = text.split(",")
    unknown = [method for method in given if method not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not allowed; allowed: {', '.join(METHODS)}")
    missing = [method for method in COMPARED if method not in given]
    if missing:
        raise argparse.ArgumentTypeError(f"{text} lacks {' and '.join(missing)}, whose losses are compared; add it")
    return text


def make_command(network: str, node: int, options: list[str]) -> list[str]:
    """Return the command that runs the ranks of a node."""
    python = f"/shared/env/{env.key(Paths(root=REPO, cache=Paths.from_environment().cache))}/bin/python"
    mounts = ["-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "-v", f"{REPO}:/repo:ro"]
    box = ["--rm", "--init", "--name", f"{network}-{node}", "--network", network, "--cap-add", "NET_ADMIN"]
    variables = ["-e", "GLOO_SOCKET_IFNAME=eth0", "-e", "OMP_NUM_THREADS=1", "-e", "PYTHONDONTWRITEBYTECODE=1"]
    variables += ["-e", f"MASTER_ADDR={network}-0", "-e", f"NODE={node}"]
    label = ["--label", LABEL, "--shm-size", "1g", "-w", "/repo"]
    ranks = [python, "-m", "benchmarks.compression_ranks", *options]
    return ["docker", "run", *box, *label, *variables, *mounts, pins.NODE_IMAGE, *ranks]


if __name__ == "__main__":
    sys.exit(main())
