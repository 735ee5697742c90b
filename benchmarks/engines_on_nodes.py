"""Run benchmarks.engines on two nodes: containers with a network between them; needs Docker and the node image.

    python -m benchmarks.engines_on_nodes [--ranks 4] [options of benchmarks.engines]
    python -m benchmarks.engines_on_nodes --overlap-mbit 500 [options of benchmarks.engines]

The first compares muster's engines with torch's on 4 gloo ranks, half of them on each node. The second has a rank on
each node and limits the link between them, to measure how much communication the engines hide.
"""

from __future__ import annotations

import sys

from benchmarks.nodes import run_on_nodes

if __name__ == "__main__":
    sys.exit(run_on_nodes("engines", "benchmarks.engines", sys.argv[1:]))
