"""Measure the time to the first training step, next to `import torch` plus a process group; needs torch.

python -m benchmarks.startup [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, report

REPO = Path(__file__).resolve().parent.parent

FLOOR = "import torch, torch.distributed as d; d.init_process_group('gloo'); print('ready', flush=True)"
PRESETS = ("tiny-mlp", "tiny-llama")
FIRST_PORT = 29700
TIMES_FLOOR_AT_MOST = 1.5


def environment(port: int) -> dict[str, str]:
    """Return the environment of a single rank, as torchrun sets it."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **rank, **settings}


def time_floor(port: int) -> float:
    """Return the seconds until a process group of one rank is ready."""
    began = time.time()
    with subprocess.Popen([sys.executable, "-c", FLOOR], env=environment(port), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101
        process.stdout.readline()
        took = time.time() - began
        process.kill()
    return took


def time_first_step(preset: str, port: int) -> float:
    """Return the seconds from the start of the trainer to the end of its first step."""
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "trainer", preset, "steps=1", "checkpoint.every=0", f"run.folder={folder}"]
        subprocess.run(run, env=environment(port), check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    return next(event["time"] for event in map(json.loads, lines) if event["event"] == "first_step") - began


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    floors: list[float] = []
    took: dict[str, list[float]] = {preset: [] for preset in PRESETS}
    for number in range(options.rounds):
        floors.append(time_floor(FIRST_PORT + 3 * number))
        for place, preset in enumerate(PRESETS, start=1):
            took[preset].append(time_first_step(preset, FIRST_PORT + 3 * number + place))
    base = median(floors)
    figures = [Figure("import torch and a process group", base)]
    for preset, seconds in took.items():
        ratio = median(seconds) / base
        figures.append(Figure(f"start to first step, {preset}", median(seconds), reference=f"floor {base:.2f} s"))
        figures.append(
            Figure(
                f"start to first step, {preset}, times the floor",
                ratio,
                "x",
                f"floor {base:.2f} s",
                TIMES_FLOOR_AT_MOST,
            )
        )
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
