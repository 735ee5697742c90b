"""Try the trackers with the real packages, offline, and measure what a record costs the training loop.

Run it where wandb and mlflow (or mlflow-skinny), numpy and pyyaml are installed; torch is not needed:

    python -m benchmarks.trackers
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from pathlib import Path

from trainer.config.load import load
from trainer.metrics.recorder import Recorder

RECORDS = 200
STEP_S = 0.01
VALUES = {"loss": 2.5, "grad_norm": 1.1, "lr": 3e-4, "tokens_per_s": 1e5, "mfu": 0.4, "step_s": STEP_S}


def main() -> int:
    """Print the time of a record without and with each tracker; fail if a tracker did not work."""
    for name, settings in {
        "none": [],
        "wandb": ["metrics.wandb=offline"],
        "mlflow": ["metrics.mlflow=offline"],
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            stream = io.StringIO()
            median_s, close_s = measure(Path(folder), [*settings, "metrics.tensorboard=false"], stream)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
        messages = [line for line in stream.getvalue().splitlines() if line.startswith("metrics.")]
        print(f"{name:8} {median_s * 1e6:6.0f} us per record, {close_s:.2f} s to close, {len(files)} files")
        if any("continues without" in line or "not everything" in line for line in messages):
            print("\n".join(messages))
            return 1
    return 0


def measure(folder: Path, settings: list[str], stream: io.StringIO) -> tuple[float, float]:
    """Return the median seconds of a record, and the seconds of the close, with steps of 10 ms in between."""
    config = load("tiny-mlp", [f"steps={RECORDS}", "metrics.every=1", *settings])
    recorder = Recorder(folder, 0, config, stream=stream)
    recorder.resume(0, 1)
    recorder.open_trackers(config)
    seconds = []
    for step in range(1, RECORDS + 1):
        time.sleep(STEP_S)
        began = time.perf_counter()
        recorder.record(step, VALUES)
        seconds.append(time.perf_counter() - began)
    recorder.end("finished", "all steps done", RECORDS)
    began = time.perf_counter()
    recorder.close()
    return statistics.median(seconds), time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
