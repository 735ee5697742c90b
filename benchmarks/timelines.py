"""Draw the timelines of a training step on two nodes, for docs/engines.md; needs Docker and the node image.

    python -m benchmarks.timelines [--mbit 1000] [--strategies ddp,fsdp,hsdp] [--out docs]

muster's engines train a Llama on two containers with a limited link between them, on a rank each, and under hsdp on two
ranks each. A step is profiled, as with `metrics.profile_every`, and drawn as in the report of a run:
`timeline-STRATEGY.svg`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.nodes import run_on_nodes

RANKS_PER_NODE = {"ddp": 1, "fsdp": 1, "hsdp": 2}


def main() -> int:
    """Train with each strategy, and copy the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=1000, help="rate of the link between the nodes")
    parser.add_argument("--strategies", default=",".join(RANKS_PER_NODE), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    given = parser.parse_args()
    strategies = given.strategies.split(",")
    if unknown := [strategy for strategy in strategies if strategy not in RANKS_PER_NODE]:
        parser.error(f"--strategies: {', '.join(unknown)}, but each must be one of {', '.join(RANKS_PER_NODE)}")
    for strategy in strategies:
        with tempfile.TemporaryDirectory() as folder:
            options = [strategy, str(RANKS_PER_NODE[strategy]), str(given.mbit)]
            status = run_on_nodes("timelines", "benchmarks.timeline_ranks", options, mounts=[f"{folder}:/out"])
            if status:
                return status
            shutil.copy(Path(folder, "timeline.svg"), given.out / f"timeline-{strategy}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
