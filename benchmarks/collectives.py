"""Time our all-reduces against torch's own, on one machine and on two nodes with a slow link; needs Docker.

    python -m benchmarks.collectives [--rounds 7] [--mebibytes 1 4 16 64 256] [--mbit 200] [--link-mebibytes 1 4 16]
                                     [--patterns ring hierarchical ...]

Four gloo ranks run in one container, and then as two nodes of two ranks whose link is limited in both directions. A
pair is an all-reduce of a pattern and one of torch, one right after the other, so that both see the same load of the
machine; every other round takes them in reverse. On one machine, sizes below 64 MB have more rounds, up to 101. A time
is that of the slowest rank, and the tables have medians. The ratio is torch's time divided by the pattern's, of the
same pair: 2.00 is twice as fast as torch. Its median, its middle half, and its smallest and largest value are printed
when a size ends. `plain` is the floor: every rank exchanges the bytes of a ring with its neighbour in the node, in a
single message, without additions. Patterns run as in training, where ranks have compared their models; `hierarchical,
checked` also compares the calls of the ranks.

`processor` is the processor time of all threads of all ranks, with the barrier before a call. It depends less on other
work on the machine than the time does. A pattern that takes longer than torch with the same processor time has waited.

`predicted` is the simulator's time, from the bytes that the schedules send and the rates of `plain` in the same run;
torch's is that of a ring, which is what gloo uses.

Bounds: the faster of ring and hierarchical takes at most 1.11 times torch's time (0.9 times its speed) from 1 to 256
MB, and hierarchical at most 0.83 times (1.2 times its speed) for the largest size on the slow link. On two nodes of two
ranks, it sends two thirds of a ring's bytes over the link, so 0.67 is the limit.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.collectives_figures import PATTERNS
from benchmarks.nodes import run_on_nodes

MODULE = "benchmarks.collectives_ranks"


def main() -> int:
    """Run the measurements that have sizes, and return the highest exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mebibytes", type=float, nargs="*", default=[1, 4, 16, 64, 256], help="sizes on one machine")
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link between the nodes")
    parser.add_argument("--link-mebibytes", type=float, nargs="*", default=[1, 4, 16], help="sizes on two nodes")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS, metavar="PATTERN")
    given = parser.parse_args()
    rounds = ["--rounds", str(given.rounds), "--patterns", *given.patterns, "--mebibytes"]
    slow_link = ["--mbit", str(given.mbit), *rounds, *map(str, given.link_mebibytes)]
    if not given.mebibytes and not given.link_mebibytes:
        parser.error("--mebibytes and --link-mebibytes have no sizes: give one of them")
    statuses = []
    if given.mebibytes:
        statuses.append(run_on_nodes("collectives", MODULE, [*rounds, *map(str, given.mebibytes)], count=1))
    if given.link_mebibytes:
        statuses.append(run_on_nodes("collectives", MODULE, slow_link))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
