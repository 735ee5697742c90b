"""Time `muster check` for a cluster of 1,000 nodes on AWS, without and with an account.

python -m benchmarks.aws [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, report
from infra.targets.aws.rehearse import moto_calls
from tests.moto_server import Moto, listening

REPO = Path(__file__).resolve().parent.parent

NODES = 1000
CHECK_AT_MOST_S = 2.0
# The pre-flight stops waiting for answers after this time.
PREFLIGHT_AT_MOST_S = 20.0
PREFLIGHT_AT_MOST_CALLS = 30
STACK = f"""config:
  muster:cluster:
    name: large
    target: aws
    aws: {{region: us-east-1, zones: [us-east-1a]}}
    groups:
      h100: {{instance_type: p5.48xlarge, count: {NODES // 4}, fabric: efa, ip_bandwidth: true}}
      h200: {{instance_type: p5en.48xlarge, count: {NODES // 4}, fabric: efa}}
      l4: {{instance_type: g6.8xlarge, min: 0, max: {NODES // 2}, fabric: efa}}
    controller: {{instance_type: m7i.2xlarge}}
    storage:
      shared: {{kind: fsx-lustre, size_gb: 48000, throughput: 500}}
"""


def check_figures(rounds: int) -> list[Figure]:
    """Time the whole command, next to starting Python alone and Python with the imports."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Pulumi.large.yaml").write_text(STACK)
        env = _environment(folder)
        bare = _seconds([sys.executable, "-c", "pass"], env, rounds)
        floor = _seconds([sys.executable, "-c", "import pydantic, yaml, rich.console, typer"], env, rounds)
        check_s = _seconds([sys.executable, "-m", "muster.cli", "check", "--stack", "large"], env, rounds)
    name = f"check of {NODES} nodes"
    return [
        Figure("python -c pass", bare),
        Figure("import of pydantic, yaml, rich, typer", floor, reference=f"bare {bare:.2f} s"),
        Figure(name, check_s, reference=f"bare {bare:.2f} s", at_most=CHECK_AT_MOST_S),
        Figure(f"{name}, times the imports", check_s / floor, "x", f"imports {floor:.2f} s"),
    ]


def preflight_figures() -> list[Figure]:
    """Time the same check with an account that answers at once, and count its API calls."""
    # moto prints a traceback for every call that it lacks.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto_calls.apply()
    server = Moto()
    with listening(server) as server.url, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Pulumi.large.yaml").write_text(STACK)
        command = [sys.executable, "-m", "muster.cli", "check", "--stack", "large"]
        began = time.perf_counter()
        # moto has neither quotas nor our images: the exit status is ignored, only time and calls count.
        env = _environment(folder) | server.environment()
        subprocess.run(command, env=env, cwd=REPO, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took = time.perf_counter() - began
    name = f"check of {NODES} nodes with an account"
    return [
        Figure(name, took, reference="moto on this machine", at_most=PREFLIGHT_AT_MOST_S),
        Figure(f"{name}, API calls", len(server.calls), "calls", "per group, not per node", PREFLIGHT_AT_MOST_CALLS),
    ]


def _environment(folder: str) -> dict[str, str]:
    """Return the environment without AWS variables or configuration."""
    without_aws = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**without_aws, "HOME": folder, "MUSTER_STACKS": folder, "MUSTER_HOME": folder}


def _seconds(command: list[str], env: dict[str, str], rounds: int) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, env=env, cwd=REPO, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - began)
    return median(took)


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = [*check_figures(options.rounds), *preflight_figures()]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
