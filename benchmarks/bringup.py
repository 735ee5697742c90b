"""Measure bring-up, change and teardown of local clusters next to a hand-written floor, and check the bounds.

    python -m benchmarks.bringup [--sizes 2,8,32] [--repeat 3] [--json figures.json] [--cold]

The bounds apply to the smallest size; larger sizes may not cost more seconds per node than the size before. `--cold`
adds the recorded phases of the last set-up and its sum with a warm `up`: run `make demo` on a fresh machine, then this
with `--cold`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import yaml

from benchmarks.figures import Figure, Shape, cold_figures, growth_figures, main_figures, middle, report
from infra.home import Home
from infra.targets.local import cgroup_tree

REPO = Path(__file__).resolve().parent.parent

# The memory limits of all nodes together must fit into this machine.
MEMORY_MB = {"few": 2048, "many": 512}
FEW_NODES = 4
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Cluster:
    """A local cluster to bring up and remove."""

    name: str
    nodes: int
    home: Path

    @property
    def memory_mb(self) -> int:
        return MEMORY_MB["few" if self.nodes <= FEW_NODES else "many"]

    def spec(self) -> dict[str, Any]:
        group = {
            "count": self.nodes,
            "size": {"cpus": 2, "memory_mb": self.memory_mb},
            "gpus": {"count": 2, "kind": "simulated", "type": "h100"},
        }
        return {
            "name": self.name,
            "target": "local",
            "groups": {"gpu": group},
            "network": {"egress": False},
            "storage": {"shared": {"keep": False}},
        }

    def floor(self) -> float:
        return timed([str(REPO / "benchmarks" / "floor.sh"), self.name, str(self.nodes), str(self.memory_mb)])

    def up(self) -> tuple[float, float]:
        """Return the seconds to the first srun on all nodes, and to the end of `up`, which also runs a test job."""
        began = time.perf_counter()
        with subprocess.Popen(self._command("up"), env=self._env(), cwd=REPO, stdout=PIPE, stderr=STDOUT) as running:
            while running.poll() is None and not self._nodes_are_up():
                time.sleep(0.05)
            if running.poll() in {None, 0}:
                # On the controller, as in floor.sh, but as the spec's default user: root may not run jobs.
                start = ["docker", "exec", f"muster-{self.name}-controller", "runuser", "-u", "muster", "--"]
                timed([*start, "srun", f"-N{self.nodes}", "hostname"])
            srun = time.perf_counter() - began
            output, _ = running.communicate(timeout=TIMEOUT_S)
        if running.returncode != 0:
            raise SystemExit(f"\nmuster up exited with {running.returncode}\n{output.decode()}")
        return srun, time.perf_counter() - began

    def muster(self, *args: str) -> float:
        return timed(self._command(*args), self._env())

    @property
    def _folder(self) -> Path:
        return self.home / self.name

    def _nodes_are_up(self) -> bool:
        """Read the progress file: polling Slurm would slow down the bring-up."""
        progress = self._folder / "progress.jsonl"
        lines = progress.read_text().splitlines() if progress.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return any(event["step"] == "nodes" and event["state"] in ("ok", "changed") for event in events)

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "muster.cli", args[0], "--stack", self.name, *args[1:]]

    def _env(self) -> dict[str, str]:
        stacks = self.home / "stacks"
        stacks.mkdir(exist_ok=True)
        (stacks / f"Pulumi.{self.name}.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": self.spec()}}))
        return os.environ | {"MUSTER_HOME": str(self.home), "MUSTER_STACKS": str(stacks)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every size, print the figures and return 1 if one exceeds its bound."""
    options = parse_arguments(argv)
    shapes: dict[int, list[Shape]] = {}
    for number in range(options.repeat):
        for nodes in options.sizes:
            print_progress(f"run {number + 1} of {options.repeat}, {nodes} nodes")
            shapes.setdefault(nodes, []).append(measure(nodes))
    typical = [middle(runs) for runs in shapes.values()]
    figures = main_figures(typical[0])
    if len(typical) > 1:
        figures += growth_figures(typical)
    if options.cold:
        figures += recorded_setup_figures(typical[0])
    print(report(figures))
    if options.json:
        runs = {str(nodes): [asdict(s) for s in measured] for nodes, measured in shapes.items()}
        verdicts = [asdict(f) | {"verdict": f.verdict} for f in figures]
        options.json.write_text(json.dumps({"figures": verdicts, "runs": runs}, indent=2) + "\n")
    return 1 if any(f.verdict == "FAIL" for f in figures) else 0


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sizes", type=parse_sizes, default=[2, 8, 32], help="numbers of compute nodes (default: 2,8,32)"
    )
    parser.add_argument("--repeat", type=parse_positive, default=1, help="runs of each size; the median counts")
    parser.add_argument("--json", type=Path, help="write the figures and every run to this file")
    parser.add_argument("--cold", action="store_true", help="add the recorded phases of the last set-up")
    return parser.parse_args(argv)


def parse_sizes(text: str) -> list[int]:
    """Return the sorted distinct sizes of a comma-separated list."""
    return sorted({parse_positive(part) for part in text.split(",")})


def parse_positive(text: str) -> int:
    """Return a whole number of at least 1, or raise an error for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def measure(nodes: int) -> Shape:
    """Return the seconds of the floor and of a cluster of this size."""
    with cluster(f"bench-floor-{nodes}", nodes) as floor_cluster:
        floor = step("floor", floor_cluster.floor)
    with cluster(f"bench-{nodes}", nodes) as ours:
        print_progress("  up ...")
        srun, up = ours.up()
        print_progress(f"  first srun after {srun:.1f} s, ready after {up:.1f} s")
        again = step("second up", lambda: ours.muster("up"))
        teardown = step("teardown", lambda: ours.muster("teardown", "--yes"))
    return Shape(nodes, floor, srun, up, again, teardown)


def recorded_setup_figures(shape: Shape) -> list[Figure]:
    """Return the figures of the recorded set-up, or exit if everything in it was cached."""
    path = Home.of(os.environ).setup_log
    record = json.loads(path.read_text()) if path.exists() else {"phases": {}}
    if all(phase["state"] == "cached" for name, phase in record["phases"].items() if name != "preflight"):
        raise SystemExit("--cold: the last set-up had nothing to do; run `make demo` on a fresh machine, then this")
    return cold_figures(record, shape.up)


@contextmanager
def cluster(name: str, nodes: int) -> Iterator[Cluster]:
    """Yield a cluster and remove everything with its label afterwards, even if a step failed."""
    remove(name)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as home:
        try:
            yield Cluster(name, nodes, Path(home))
        finally:
            remove(name)


def remove(name: str) -> None:
    """Remove all containers, networks, volumes and cgroups of a cluster."""
    label = f"label=muster.cluster={name}"
    for kind, listing in (("container", "ps -aq"), ("network", "network ls -q"), ("volume", "volume ls -q")):
        listed = subprocess.run(
            ["docker", *listing.split(), "--filter", label], capture_output=True, text=True, check=True
        )
        if listed.stdout.split():
            force = ["-f", "-v"] if kind == "container" else []
            subprocess.run(["docker", kind, "rm", *force, *listed.stdout.split()], capture_output=True, check=True)
    cgroup_tree.remove_cluster(name)


def step(name: str, work: Any) -> float:
    """Do the work, print its seconds and return them."""
    print(f"  {name} ...", end="", file=sys.stderr, flush=True)
    seconds: float = work()
    print(f" {seconds:.1f} s", file=sys.stderr)
    return seconds


def timed(command: list[str], env: dict[str, str] | None = None) -> float:
    """Run a command and return its seconds; exit with its output if it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, env=env, cwd=REPO, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"\n{' '.join(command)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - began


def print_progress(text: str) -> None:
    """Print a line to stderr at once."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
