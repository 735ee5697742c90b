"""Measure compressed gradients on two nodes with a slow link between them; needs Docker and the node image.

    python -m benchmarks.compression [--mbit 200] [--rounds 7] [--steps 600] [--methods none,topk,...]

Two containers of two gloo ranks each are the nodes, and the link between them is limited in both directions. Steps of
a model of 10 million parameters are timed: in each round, all methods take a step, so that all see the same load of
the machine. A time is that of the slowest rank; the table has medians, and the speed-up over whole gradients (none)
in the same round with its smallest and largest value. Bytes are those that a rank sends in a step, and those that a
node sends, read from its network interface. Then, without the limit, the tiny language model is trained with each
method for the same steps, from the same weights, on the same samples; the loss is that on held-out samples. The three
last methods take 50 local steps between outer ones: `diloco` with the default outer momentum of 0.9, `diloco_0.6` with
0.6, `local_sgd` with averages of the weights. `--rounds 0` leaves out the times, `--steps 0` the losses.

Bounds: topk sends at least 50 times fewer bytes than an fp32 all-reduce, its loss is at most 2 % above, and with 200
Mbit/s its step is at least 3 times faster. Local steps send at least 20 times fewer bytes, and the loss of `diloco_0.6`
and `local_sgd` is at most 2 % above that of whole gradients; `diloco` needs more outer steps than these.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.nodes import run_on_nodes

METHODS = ("none", "topk", "randomk", "powersgd", "bf16", "fp8", "int8", "diloco", "diloco_0.6", "local_sgd")
COMPARED = ("none", "topk")
"""The methods whose losses have a bound."""


def main() -> int:
    """Start the nodes, show what the first one prints, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link between the nodes")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each method")
    parser.add_argument("--steps", type=int, default=600, help="steps of the runs whose losses are compared")
    parser.add_argument("--methods", type=check_methods, default=",".join(METHODS), help="whose losses are compared")
    given = parser.parse_args()
    options = ["--mbit", str(given.mbit), "--rounds", str(given.rounds), "--steps", str(given.steps)]
    return run_on_nodes("compression", "benchmarks.compression_ranks", [*options, "--methods", given.methods])


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


if __name__ == "__main__":
    sys.exit(main())
