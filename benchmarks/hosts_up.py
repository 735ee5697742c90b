"""Measure `up` on hosts: containers with systemd and OpenSSH, next to a local cluster of the same size.

    .venv/bin/python -m benchmarks.hosts_up [--hosts 3] [--no-local] [--json FILE]

Two further runs of `up` change nothing. The first of them follows at once, while the hosts still start their daemons;
the other one, which the bound is for, begins when the machine is at rest, or after a minute. Its processor time is that
of `muster`, Pulumi and its programs, without the work of the hosts.

All containers are on this machine, which also does the work of the hosts. They have Slurm's packages, as local nodes
have. The pre-flight of `up` is left out, because their shared filesystem is a volume of this machine;
`benchmarks.hosts_preflight` measures it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import Figure, report
from benchmarks.idle_time import read_idle_s
from tests.e2e.rack import HEAD, UNCHECKED, open_rack
from tests.harness import Spec, Stack, small_spec

FIRST_TIMES_LOCAL = 2.0
SECOND_S = 10.0
# The machine is at rest while its processors are idle for this share of the time.
IDLE_SHARE, REST_LIMIT_S, REST_SAMPLE_S = 0.8, 60.0, 2.0


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    processor_s: float
    """Processor time of `muster` and the programs that it started here."""


@dataclass(frozen=True)
class Costs:
    """What each command of a cluster took."""

    first: Cost
    next: Cost
    """An `up` without changes right after the first."""
    settled: Cost
    """An `up` without changes when the machine is at rest."""
    teardown: Cost


def measure(stack: Stack, *options: str) -> Costs:
    """Return what `up` took, two more that change nothing, and teardown."""
    first, following = run(stack, "up", *options), run(stack, "up", *options)
    print(f"{stack.name}: the processors were {100 * wait_for_rest():.0f} % idle before the next up", flush=True)
    return Costs(first, following, run(stack, "up", *options), run(stack, "teardown", "--yes", "--force"))


def run(stack: Stack, *command: str) -> Cost:
    """Run a command and return what it took."""
    began, used = time.monotonic(), read_processor_s()
    stack.muster(*command)
    cost = Cost(time.monotonic() - began, read_processor_s() - used)
    print(f"{stack.name}: {command[0]} {cost.seconds:.1f} s, processor time {cost.processor_s:.1f} s", flush=True)
    return cost


def read_processor_s() -> float:
    """Return the processor time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def wait_for_rest() -> float:
    """Wait until the processors are mostly idle, at most a minute; return the share of the time that they were."""
    limit = time.monotonic() + REST_LIMIT_S
    while True:
        before = read_idle_s()
        time.sleep(REST_SAMPLE_S)
        share = (read_idle_s() - before) / REST_SAMPLE_S / (os.cpu_count() or 1)
        if share >= IDLE_SHARE or time.monotonic() > limit:
            return share


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts_up", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=3, help="the controller and the compute nodes (default: 3)")
    parser.add_argument("--no-local", action="store_true", help="do not create a local cluster to compare with")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    hosts = [HEAD, *(f"rack1-{number}" for number in range(1, options.hosts))]
    with tempfile.TemporaryDirectory() as folder:
        stacks: list[Stack] = []

        def make_stack(name: str, spec: Spec) -> Stack:
            home = Path(folder) / name
            home.mkdir()
            stacks.append(Stack(name, home, spec | {"name": f"{name}-{os.getpid():x}"}))
            return stacks[-1]

        try:
            local = None
            if not options.no_local:
                size = {"cpus": 1, "memory_mb": 1536}
                group = {"count": len(hosts) - 1, "size": size}
                local = measure(make_stack("local", small_spec(groups={"cpu": group}, login={"enabled": False})))
            with open_rack(make_stack, Path(folder), hosts) as rack:
                measured = measure(rack.stack, UNCHECKED)
        finally:
            for stack in stacks:
                stack.remove()
    figures = list_figures(len(hosts), measured, local)
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def list_figures(count: int, hosts: Costs, local: Costs | None) -> list[Figure]:
    """Return the figures of the hosts, compared with those of a local cluster if there was one."""
    figures = [Figure(f"up on {count} hosts", hosts.first.seconds)]
    if local:
        times, reference = hosts.first.seconds / local.first.seconds, f"{local.first.seconds:.1f} s"
        figures.append(Figure("times that of a local cluster", times, "x", reference, FIRST_TIMES_LOCAL))

    def compare(cost: Cost | None) -> str:
        return f"local {cost.seconds:.1f} s" if cost else "local not measured"

    at_once, at_rest = compare(local.next if local else None), compare(local.settled if local else None)
    return [
        *figures,
        Figure("up without changes right after it", hosts.next.seconds, reference=at_once),
        Figure("up without changes, at rest", hosts.settled.seconds, reference=at_rest, at_most=SECOND_S),
        Figure("its processor time without the hosts' work", hosts.settled.processor_s),
        Figure("teardown", hosts.teardown.seconds),
        Figure("processes that ran or waited for a processor", os.getloadavg()[0], unit=""),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
