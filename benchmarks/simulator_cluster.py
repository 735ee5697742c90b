"""Calibrate a local cluster as a job, predict training runs on its nodes from the profile, and compare with real runs.

    python -m benchmarks.simulator_cluster [--tries 5] [--shapes 2x2,1x2,1x1] [--json FILE]

A shape is nodes x ranks of each node. The first step that a user takes (`make submit JOB=slurm/jobs/calibrate.sbatch`)
is the first step here. Changing load causes errors in both directions, a wrong model always in the same one: the
median of the tries counts, and the share of the cores that other processes used widens the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

from benchmarks.figures import Figure, report
from tests.harness import Stack, small_spec
from tests.machine_load import watch_other_load

REPO = Path(__file__).resolve().parent.parent

CALIBRATE_JOB = "slurm/jobs/calibrate.sbatch"
TRAIN_JOB = "/shared/muster/slurm/jobs/train.sbatch"
SHORT_CALIBRATION = "--seconds 0.03"
BATCH, STEPS, WARMUP_STEPS = 8, 120, 30
FASTEST_OF = 5
SETTINGS = (
    *("tiny-llama", "model.dim=128", "model.layers=4", "model.heads=4", "model.kv_heads=4", "model.ffn=384"),
    *("model.vocab_size=1024", "model.seq_len=64", f"batch.size={BATCH}", f"steps={STEPS}", "checkpoint.every=0"),
    *("metrics.every=1", "metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
)
MAX_ERROR = 0.20


def main() -> int:
    """Measure every shape, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5, help="calibrations of each shape (%(default)s)")
    parser.add_argument("--shapes", type=parse_shapes, default=parse_shapes("2x2,1x2,1x1"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as home:
        cluster = Stack("bench-calibrate", Path(home), small_spec(name=f"bench-calibrate-{os.getpid():x}"))
        try:
            cluster.up()
            figures = [
                measure(cluster, nodes, ranks, options.tries, Path(home) / f"{nodes}x{ranks}")
                for nodes, ranks in options.shapes
            ]
            cluster.muster("teardown", "--yes")
        finally:
            cluster.remove()
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """Return (nodes, ranks per node) of each shape in `2x2,1x1`."""
    return [(int(nodes), int(ranks)) for nodes, _, ranks in (word.partition("x") for word in text.split(","))]


def measure(cluster: Stack, nodes: int, ranks: int, tries: int, folder: Path) -> Figure:
    """Return the median error of the predictions of one shape."""
    folder.mkdir()
    containers = [f"muster-{cluster.cluster}-{node['name']}" for node in cluster.inventory["nodes"]]
    ratios, lines, own_share = [], [], 1.0
    for _ in range(tries):
        other_load = watch_other_load(containers)
        profile, run = calibrate(cluster, nodes, ranks, folder), train(cluster, nodes, ranks, folder)
        own_share = min(own_share, 1 - other_load())
        predicted, measured = predict_step_s(run, profile, nodes, ranks), fast_step_s(run)
        ratios.append(predicted / measured)
        lines.append(f"{1e3 * predicted:.1f}/{1e3 * measured:.1f} ms")
        print(f"  {nodes} x {ranks} ranks: predicted/measured {lines[-1]}", file=sys.stderr, flush=True)
    ratio = median(ratios)
    # Other load slows down either the calibration or the run, so both directions are corrected.
    error = 100 * max(ratio * own_share - 1, 1 - ratio / own_share, 0)
    reference = f"predicted/measured {', '.join(lines)}; others used {1 - own_share:.0%} of the machine"
    return Figure(f"{nodes} x {ranks} ranks: off by, without other load", error, "%", reference, 100 * MAX_ERROR)


def calibrate(cluster: Stack, nodes: int, ranks: int, folder: Path) -> Path:
    """Calibrate as docs/simulator.md says if all GPUs of a node take part, else with sbatch; return the profile."""
    if ranks == 2:  # noqa: PLR2004  # the GPUs of a node of `small_spec`
        variables = [f"STACK={cluster.name}", f"JOB={CALIBRATE_JOB}", f"NODES={nodes}", f"ARGS={SHORT_CALIBRATION}"]
        done = subprocess.run(
            ["make", "submit", *variables],
            cwd=REPO, env=cluster.environment(), text=True, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        assert "COMPLETED" in done.stdout, done.stdout + done.stderr  # noqa: S101
    else:
        line = f"RANKS_PER_NODE={ranks} sbatch --wait -N {nodes} -o calibrate.out /shared/muster/{CALIBRATE_JOB}"
        cluster.ssh("login", f"cd ~/jobs && {{ {line} {SHORT_CALIBRATION} || {{ cat calibrate.out; false; }}; }}")
    profile = folder / "profile.json"
    profile.write_text(cluster.muster("ssh", "login", "--", "cat", "jobs/profile.json").stdout)
    return profile


def train(cluster: Stack, nodes: int, ranks: int, folder: Path) -> Path:
    """Train on the same nodes and return a copy of the run folder."""
    strategy = "ddp" if nodes * ranks > 1 else "single"
    arguments = shlex.join([*SETTINGS, f"batch.micro={BATCH // (nodes * ranks)}", f"parallel.strategy={strategy}"])
    run = f"~/runs/calibrated-{nodes}x{ranks}"
    line = f"RANKS_PER_NODE={ranks} RUN_FOLDER={run} sbatch --wait -N {nodes} -o train.out {TRAIN_JOB} {arguments}"
    cluster.ssh("login", f"cd ~ && rm -rf {run} && {{ {line} || {{ cat train.out; false; }}; }}")
    copy = folder / "run"
    (copy / "metrics").mkdir(parents=True, exist_ok=True)
    for name in ("config.yaml", "events.jsonl", "metrics/rank-00000.jsonl"):
        (copy / name).write_text(cluster.ssh("login", f"cat {run}/{name}") + "\n")
    return copy


def predict_step_s(run: Path, profile: Path, nodes: int, ranks: int) -> float:
    """Return the seconds of a step that `simulator report` predicts from the profile."""
    command = [sys.executable, "-m", "simulator", "report", str(run), "--profile", str(profile)]
    done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr  # noqa: S101
    (row,) = json.loads((run / "predicted" / "report.json").read_text())["runs"]
    assert (row["ranks"], row["nodes"], row["end"]) == (nodes * ranks, nodes, "finished")  # noqa: S101
    return float(row["step_s"]["predicted"])


def fast_step_s(run: Path) -> float:
    """Return the upper bound of the fastest fifth of the steps, as calibrate does: it excludes most other load."""
    lines = (run / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    return quantiles([json.loads(line)["step_s"] for line in lines[WARMUP_STEPS:]], n=FASTEST_OF)[0]


if __name__ == "__main__":
    sys.exit(main())
