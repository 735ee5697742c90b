"""Measure what the isolation of jobs adds to the start of a job, on a real local cluster of two nodes.

    python -m benchmarks.job_start [--jobs 15] [--rounds 3] [--json FILE]

Jobs on both nodes start with the cluster's settings, and without private folders, the epilog, PrivateData and the rules
for connections between users, in turn. The clock runs from `srun` to the first task. A job starts on idle nodes, or as
soon as the job before has ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.bringup import Cluster, cluster, parse_positive, print_progress
from benchmarks.figures import Figure, report
from benchmarks.recovery import run_script, wait_for
from bootstrap.steps import job_network
from bootstrap.verify import CONF
from slurm.control.nodes import parse_nodes, show_nodes

AT_MOST_S = 0.5
NODES = 2
SETTINGS = "JobContainerType|NamespaceType|Epilog|PrivateData"
SWITCH = {
    True: f"[ ! -e {CONF}.isolated ] || cp -p {CONF}.isolated {CONF}",
    False: f"cp -pn {CONF} {CONF}.isolated; sed -Ei '/^({SETTINGS})=/d' {CONF}",
}
# After slurmd has started: it loads the rules.
NETWORK = {True: job_network.PATH, False: "nft delete table inet muster_jobs"}
# Prints the seconds from srun to the first task. `gap` is how long the nodes are left alone before.
START = """for _ in $(seq {jobs}); do
  sleep {gap}
  began=$(date +%s.%N)
  started=$(srun -N{nodes} date +%s.%N 2>/dev/null | sort | head -n 1)
  echo "$started $began" | awk '{{ printf "%.3f\\n", $1 - $2 }}'
done"""
GAPS = {"on idle nodes": 1.5, "right after another job": 0.0}
Seconds = dict[tuple[str, bool], list[float]]


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=parse_positive, default=15, help="jobs of each kind in a round")
    parser.add_argument("--rounds", type=parse_positive, default=3, help="how often the settings are switched")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with cluster("bench-start", NODES) as ours:
        print_progress("up ...")
        ours.muster("up")
        seconds = measure(ours, options.jobs, options.rounds)
        ours.muster("teardown", "--yes", "--force")
    figures = [figure for kind in GAPS for figure in start_figures(kind, seconds)]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure(ours: Cluster, jobs: int, rounds: int) -> Seconds:
    """Return the seconds of every job by kind, and whether it was isolated."""
    seconds: Seconds = {(kind, isolated): [] for kind in GAPS for isolated in SWITCH}
    for number in range(rounds):
        for isolated in SWITCH:
            print_progress(f"round {number + 1} of {rounds}, {'with' if isolated else 'without'} isolation")
            switch(ours, isolated=isolated)
            for kind, gap in GAPS.items():
                lines = run_script(ours, "login", START.format(jobs=jobs, gap=gap, nodes=NODES))
                seconds[kind, isolated] += map(float, lines.split())
    return seconds


def switch(ours: Cluster, *, isolated: bool) -> None:
    """Load the settings, and wait until both nodes are idle."""
    run_script(ours, "controller", f"{SWITCH[isolated]}\nsystemctl restart slurmctld", "root")
    for number in range(NODES):
        run_script(ours, f"gpu-{number + 1}", "systemctl restart slurmd", "root")
    for node in ("controller", "login", *(f"gpu-{number + 1}" for number in range(NODES))):
        run_script(ours, node, NETWORK[isolated], "root")
    wait_for(lambda: _list_states(ours) == ["idle"] * NODES, "idle nodes")
    run_script(ours, "login", f"srun -N{NODES} true")


def _list_states(ours: Cluster) -> list[str]:
    listed = parse_nodes(run_script(ours, "controller", f"{show_nodes()} 2>/dev/null || true", "root"))
    return [str(state) for state in listed.values()]


def start_figures(kind: str, seconds: Seconds) -> list[Figure]:
    """Return the median with isolation next to the one without it, and the bounded difference."""
    isolated, plain = median(seconds[kind, True]), median(seconds[kind, False])
    reference = f"without isolation {plain:.2f} s"
    return [
        Figure(f"start of a job {kind}", isolated, reference=reference),
        Figure(f"added by isolation, {kind}", isolated - plain, reference=reference, at_most=AT_MOST_S),
    ]


if __name__ == "__main__":
    sys.exit(main())
