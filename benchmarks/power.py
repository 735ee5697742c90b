"""Count the AWS calls of the power programs against moto, compared with a CreateTags call for every machine.

python -m benchmarks.power [--nodes 256]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figure, report
from infra.targets.aws.rehearse import moto_calls
from slurm.hostlist import hostlist
from slurm.power.programs import resume, suspend
from slurm.power.sweep import sweep
from tests.moto_server import Moto, listening
from tests.slurm.power.cluster import TYPE, Clock, FakeSlurm, make_context, make_fleet

# List machines, read the launch template's interfaces, launch, publish the names.
RESUME_CALLS = 4
# The next zone adds its template and its launch.
SHORTAGE_CALLS = RESUME_CALLS + 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures and return 1 if one of them is too high."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=256)
    figures = measure(parser.parse_args(argv).nodes)
    print(report(figures))
    return 1 if any(figure.verdict == "FAIL" for figure in figures) else 0


def measure(count: int) -> list[Figure]:
    """Return the number of calls for `count` nodes."""
    moto_calls.apply()
    server = Moto()
    with listening(server) as server.url, tempfile.TemporaryDirectory() as folder:
        os.environ |= server.environment()
        slurm, clock = FakeSlurm(), Clock(time.time())
        context = make_context(make_fleet(server), Path(folder), slurm, clock)
        nodes = [f"gpu-{number}" for number in range(1, count + 1)]
        job = {"job_id": 1, "nodes_resume": hostlist(nodes), "nodes_alloc": hostlist(nodes)}
        baseline = f"{count + 3} with a CreateTags call per machine"

        launched = _count_calls(server, lambda: resume(context, nodes, [job]))
        slurm.states = dict.fromkeys(nodes, "ALLOCATED+CLOUD")
        swept = _count_calls(server, lambda: sweep(context))
        # The test clock did not move during the launch, which would make these machines younger than the suspend.
        clock.t += 60
        ended = _count_calls(server, lambda: suspend(context, nodes))
        server.capacity[(TYPE, "us-east-1a")] = count - 1
        short = _count_calls(server, lambda: resume(context, nodes, [job]))
    return [
        Figure(f"resume of {count} nodes", launched, "calls", baseline, RESUME_CALLS),
        Figure(f"resume of {count} nodes, first zone short of one", short, "calls", baseline, SHORTAGE_CALLS),
        Figure(f"sweep over {count} healthy nodes", swept, "calls", at_most=1),
        Figure(f"suspend of {count} nodes", ended, "calls", at_most=2),
    ]


def _count_calls(server: Moto, act: Callable[[], object]) -> int:
    server.calls.clear()
    act()
    return len(server.calls)


if __name__ == "__main__":
    sys.exit(main())
