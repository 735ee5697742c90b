"""Compare our own runs on this machine's GPU with predictions from a profile and from the data sheet.

    python -m benchmarks.simulator_gpu [--keep FOLDER] [--json FILE]

Needs a Python with torch for CUDA and the trainer's packages. One rank; a run's figure is the median of its steps after
the warm-up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, report
from simulator.hardware.gpus import link_gb_s, list_gpu_names, load_gpu
from simulator.hardware.system import System
from simulator.job import Job
from simulator.machines.profile import read
from simulator.step.prediction import predict
from trainer.config.load import load

WARMUP_STEPS = 5
PLAIN = "compile.mode=none"
RUNS = {
    "llama-1b, compiled": ["llama-1b", "steps=14", "batch.size=8", "batch.micro=4"],
    "llama-1b": ["llama-1b", "steps=14", "batch.size=8", "batch.micro=4", PLAIN],
    "gpt2-124m, compiled": ["gpt2-124m", "steps=24", "batch.size=64", "batch.micro=32"],
    "gpt2-124m": ["gpt2-124m", "steps=24", "batch.size=64", "batch.micro=32", PLAIN],
    "gpt2-124m, 4 samples": ["gpt2-124m", "steps=40", "batch.size=4", "batch.micro=4", PLAIN],
    "resnet50, compiled": ["resnet50", "steps=20", "batch.size=256", "batch.micro=256"],
    "resnet50": ["resnet50", "steps=20", "batch.size=256", "batch.micro=256", PLAIN],
}
COMMON = ["parallel.strategy=single", "checkpoint.every=0", "metrics.every=1"]
COMMON += ["metrics.profile_every=0", "metrics.tensorboard=false"]
MAX_ERROR_PERCENT = 25.0


def main() -> int:
    """Calibrate, train, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the profile and the runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        _start("calibrate", "simulator", "calibrate", "--out", str(folder / "profile.json"))
        figures = [figure for name, settings in RUNS.items() for figure in _compare(folder, name, settings)]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def _compare(folder: Path, name: str, settings: list[str]) -> list[Figure]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    _start(name, "trainer", *settings, *COMMON, f"run.folder={run}")
    lines = (run / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    took = median(json.loads(line)["step_s"] for line in lines[WARMUP_STEPS:])
    config = load(settings[0], [*settings[1:], *COMMON])
    job = Job(config, int(config.batch.micro), config.batch.size)
    profile = read(folder / "profile.json")
    measured, sheet = profile.of(1, 1), _system_from_data_sheet(profile.machine["device"])
    by_profile = predict(job.model, job.layout(1), measured.system, measured.rates).step_s
    by_sheet = predict(job.model, job.layout(1), sheet).step_s
    summary = f"measured {1e3 * took:.1f} ms, predicted {1e3 * by_profile:.1f}"
    reference = f"{summary}; off the data sheet {1e3 * by_sheet:.1f} ({100 * (by_sheet / took - 1):+.0f} %)"
    return [Figure(f"{name}: off by", 100 * abs(by_profile / took - 1), "%", reference, MAX_ERROR_PERCENT)]


def _system_from_data_sheet(device: str) -> System:
    name = next(name for name in sorted(list_gpu_names(), key=len, reverse=True) if name in device.lower())
    return System(
        name=name, gpu=load_gpu(name), gpus_per_node=1, nodes=1, intra_gb_s=link_gb_s(name), inter_gb_s=0.0
    )  # fmt: skip


def _start(name: str, module: str, *arguments: str) -> None:
    print(f"  {name} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
