"""Count API calls and time the real Pulumi engine for clusters on AWS, with moto instead of AWS.

    python -m benchmarks.aws_engine [--json FILE]

First `up`, refresh, a change and teardown of the example aws-g6-pair: calls of the test plugin, of our own providers
and of teardown's search (the real AWS provider makes more). Then previews of static clusters with three groups, and
the memory of all processes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, report
from benchmarks.process_tree import ResourceUsage, measure_usage
from infra.targets.aws.rehearse import moto_calls, moto_gaps
from infra.targets.aws.rehearse.simulated_boot import simulate_boot
from tests.infra.targets.aws.with_engine.cloud import Cloud, on_moto
from tests.infra.targets.aws.with_engine.cloud_stack import CALLS_AT_MOST, SECONDS_AT_MOST, CloudStack, example
from tests.moto_server import Moto, listening

NODES = (64, 256, 512)
PREVIEW_AT_MOST_S = 60
INSTANCE_TYPES = {"h100": ("p5.48xlarge", 2), "h200": ("p5en.48xlarge", 4), "l4": ("g6.8xlarge", 4)}
"""Instance type of each group, and the divisor of its share of the nodes."""


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure()
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure() -> list[Figure]:
    """Start moto and return all figures."""
    # moto has no price list and prints a traceback for every request.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto_calls.apply()
    moto_gaps.apply()
    server = Moto()
    with listening(server) as server.url, tempfile.TemporaryDirectory() as home, simulate_boot():
        os.environ |= server.environment()
        cloud = on_moto(server)
        return [*life_figures(Path(home), cloud), *preview_figures(Path(home), cloud)]


def life_figures(home: Path, cloud: Cloud) -> list[Figure]:
    """Return calls and seconds of up, refresh, change and teardown of a small cluster."""
    stack = example("aws-g6-pair", home / "pair", cloud)
    _run_life(stack)
    calls = [Figure(phase, count, "calls", at_most=CALLS_AT_MOST[phase]) for phase, count in stack.calls.items()]
    return [*calls, *(Figure(phase, took, at_most=SECONDS_AT_MOST[phase]) for phase, took in stack.seconds.items())]


def preview_figures(home: Path, cloud: Cloud) -> list[Figure]:
    """Return seconds and memory of previews, by number of nodes."""
    previews = {nodes: _preview(home / f"n{nodes}", cloud, nodes) for nodes in NODES}
    figures = []
    for nodes, preview in previews.items():
        figures.append(Figure(f"preview of {nodes} static nodes", preview.seconds, at_most=PREVIEW_AT_MOST_S))
        figures.append(Figure(f"memory of all processes, {nodes} nodes", preview.peak_mb, "MB"))
    few, many = previews[NODES[0]].peak_mb, previews[NODES[-1]].peak_mb
    growth = Figure(f"memory, times that of {NODES[0]} nodes", many / few, "x", at_most=NODES[-1] / NODES[0])
    return [*figures, growth]


def _preview(home: Path, cloud: Cloud, nodes: int) -> ResourceUsage:
    groups: dict[str, Any] = {
        name: {"instance_type": type_, "count": nodes // divisor, "fabric": "efa"}
        for name, (type_, divisor) in INSTANCE_TYPES.items()
    }
    aws = {"region": cloud.region, "zones": [f"{cloud.region}a"]}
    stack = example("aws-p5en-lustre", home, cloud, name="large", groups=groups, aws=aws, budget={})
    return measure_usage(stack.preview)


def _run_life(stack: CloudStack) -> None:
    with stack.counted("up"):
        stack.up()
    with stack.counted("refresh"):
        stack.unchanged()
    stack.spec["tags"] = {"team": "x"}
    with stack.counted("change"):
        stack.up()
    with stack.counted("teardown"):
        stack.teardown()


if __name__ == "__main__":
    sys.exit(main())
