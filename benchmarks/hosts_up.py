"""Measure `up` on hosts: containers with systemd and OpenSSH, next to a local cluster of the same size.

    .venv/bin/python -m benchmarks.hosts_up [--hosts 3] [--json FILE]

All containers are on this machine, which also does the work of the hosts. They have Slurm's packages, as local nodes
have. The pre-flight of `up` is left out, because their shared filesystem is a volume of this machine;
`benchmarks.hosts_preflight` measures it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import Figure, report
from tests.e2e.rack import HEAD, UNCHECKED, open_rack
from tests.harness import Spec, Stack, small_spec

FIRST_TIMES_LOCAL = 2.0
SECOND_S = 10.0


def measure(stack: Stack, *options: str) -> tuple[float, float, float]:
    """Return the seconds of `up`, of a second one that changes nothing, and of teardown."""
    seconds = []
    for command in (("up", *options), ("up", *options), ("teardown", "--yes", "--force")):
        began = time.monotonic()
        stack.muster(*command)
        seconds.append(time.monotonic() - began)
        print(f"{stack.name}: {command[0]} {seconds[-1]:.1f} s", flush=True)
    first, second, teardown = seconds
    return first, second, teardown


def main() -> int:
    """Run the benchmark and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts_up", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=3, help="the controller and the compute nodes (default: 3)")
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
            size = {"cpus": 1, "memory_mb": 1536}
            group = {"count": len(hosts) - 1, "size": size}
            local = make_stack("local", small_spec(groups={"cpu": group}, login={"enabled": False}))
            local_first, local_second, _ = measure(local)
            with open_rack(make_stack, Path(folder), hosts) as rack:
                first, second, teardown = measure(rack.stack, UNCHECKED)
        finally:
            for stack in stacks:
                stack.remove()
    count = len(hosts)
    figures = [
        Figure(f"up on {count} hosts", first),
        Figure("times that of a local cluster", first / local_first, "x", f"{local_first:.1f} s", FIRST_TIMES_LOCAL),
        Figure("second up without changes", second, reference=f"local {local_second:.1f} s", at_most=SECOND_S),
        Figure("teardown", teardown),
        Figure("processes that ran or waited for a processor", os.getloadavg()[0], unit=""),
    ]
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    raise SystemExit(main())
