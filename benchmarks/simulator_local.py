"""Compare our own runs on this machine's CPU with predictions from its calibrated profile.

    python -m benchmarks.simulator_local [--ranks 1,2,4] [--weight 40] [--keep FOLDER] [--json FILE]

Ranks are processes of one node container, connected by gloo. Calibration and runs alternate, so that other load affects
both alike. A run's figure is the fastest fifth of its steps, as in calibrate. The table shows the round with the median
error, its median step and the errors of all rounds.
On a shared machine, --weight gives all ranks together the CPU weight of that many other processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

from benchmarks.figures import Figure, report
from setup import env, pins
from setup.paths import Paths
from simulator.job import Job
from simulator.machines.profile import read
from simulator.step.prediction import predict
from trainer.config.load import load

REPO = Path(__file__).resolve().parent.parent

BATCH, STEPS, WARMUP_STEPS = 8, 200, 40
ROUNDS = 3
RUNS = {
    "tiny-llama": [],
    "small llama": [
        *("model.dim=128", "model.layers=4", "model.heads=4", "model.kv_heads=4", "model.ffn=384"),
        *("model.vocab_size=1024", "model.seq_len=64"),
    ],
}
COMMON = [
    *(f"batch.size={BATCH}", f"steps={STEPS}", "run.device=cpu", "checkpoint.every=0", "metrics.every=1"),
    *("metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
]
MAX_ERROR_PERCENT = 15.0


def main() -> int:
    """Calibrate, train, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4])
    parser.add_argument(
        "--weight", type=int, default=0, help="CPU weight in processes; needs Docker's cgroupfs driver (%(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="empty folder for the profile and the runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    paths = Paths(root=REPO, cache=Paths.from_environment().cache)
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir=paths.cache) as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        measure(paths, folder, options.ranks, options.weight)
        figures = [compare(folder, name, ranks) for ranks in options.ranks for name in RUNS]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure(paths: Paths, folder: Path, ranks: list[int], weight: int) -> None:
    """Calibrate and train in containers, in turn, for each number of ranks."""
    python = f"/shared/env/{env.key(paths)}/bin/python"
    mounts = ["-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "-v", f"{REPO}:/repo:ro", "-v", f"{folder}:/disk"]
    box = ["docker", "run", "--rm", "--init", "--network", "none", "--shm-size", "4g", "-w", "/disk", *mounts]
    variables = ("GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1", "PYTHONPATH=/repo", "PYTHONDONTWRITEBYTECODE=1")
    box += [word for variable in (*variables, "TORCH_CPP_LOG_LEVEL=FATAL") for word in ("-e", variable)]
    # By default all containers together have the CPU weight of a single process outside; this one gets its own weight.
    box += ["--cgroup-parent", "/", "--cpu-shares", str(1024 * weight)] if weight else []
    box += ["--label", "muster.cluster=bench-simulator", pins.NODE_IMAGE]
    for count in ranks:
        for turn in range(ROUNDS):
            for command in commands(count, turn):
                print(f"  {count} ranks, {turn + 1}/{ROUNDS}: {' '.join(command[:3])} ...", file=sys.stderr, flush=True)
                subprocess.run([*box, python, *launcher(count), *command], check=True, stdout=subprocess.DEVNULL)


def commands(ranks: int, turn: int) -> Iterator[list[str]]:
    """Yield the arguments of Python for the calibration and each run of a round."""
    yield ["-m", "simulator.calibrate", "--out", f"/disk/profile-{turn}.json"]
    for name in RUNS:
        yield ["-m", "trainer", *settings(name, ranks), f"run.folder=/disk/{folder_of(name, ranks, turn)}"]


def launcher(ranks: int) -> list[str]:
    """Return the arguments that start torchrun; none for a single rank."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    return [] if ranks == 1 else torchrun


def settings(name: str, ranks: int) -> list[str]:
    """Return the trainer's settings of a run."""
    strategy = "ddp" if ranks > 1 else "single"
    return ["tiny-llama", *RUNS[name], *COMMON, f"batch.micro={BATCH // ranks}", f"parallel.strategy={strategy}"]


def compare(folder: Path, name: str, ranks: int) -> Figure:
    """Return the error of the round with the median error."""
    rounds = sorted(
        (compare_round(folder, name, ranks, turn) for turn in range(ROUNDS)), key=lambda times: times[0] / times[1]
    )
    predicted, quick, usual = rounds[len(rounds) // 2]
    errors = [f"{100 * (step / fast - 1):+.0f}" for step, fast, _ in rounds]
    times = f"predicted {1e3 * predicted:.1f} ms, measured {1e3 * quick:.1f} ms, median {1e3 * usual:.1f} ms"
    error = 100 * abs(predicted / quick - 1)
    return Figure(
        f"{name}, {ranks} ranks: off by", error, "%", f"{times}; rounds {' '.join(errors)} %", MAX_ERROR_PERCENT
    )


def compare_round(folder: Path, name: str, ranks: int, turn: int) -> tuple[float, float, float]:
    """Return the seconds of a step in a round: predicted, of the fastest fifth, and the median."""
    preset, *overrides = settings(name, ranks)
    job = Job(load(preset, overrides), BATCH // ranks, BATCH // ranks)
    calibrated = read(folder / f"profile-{turn}.json").of(1, ranks)
    predicted = predict(job.model, job.layout(ranks), calibrated.system, calibrated.rates).step_s
    lines = (folder / folder_of(name, ranks, turn) / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    took = [json.loads(line)["step_s"] for line in lines[WARMUP_STEPS:]]
    return predicted, quantiles(took, n=5)[0], median(took)


def folder_of(name: str, ranks: int, turn: int) -> str:
    """Return the name of a run's folder."""
    return f"{name.replace(' ', '-')}-{ranks}-{turn}"


if __name__ == "__main__":
    sys.exit(main())
