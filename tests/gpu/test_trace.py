"""A trace of steps on the GPU: its kernels, and a snapshot of its memory with the history of these steps."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import DEVICE, LLAMA, MICRO, batch
from trainer.config.load import load
from trainer.life.trace_request import TraceRequest
from trainer.metrics.tracer import TRACES_FOLDER, Tracer
from trainer.models.shape import shape_of


def test_a_trace_has_the_kernels_and_the_memory_of_its_steps(tmp_path: Path) -> None:
    config = load("tiny-llama", [*LLAMA, "parallel.strategy=single"])
    step, tracer = make_step(config), Tracer(tmp_path, 0, DEVICE, print)
    step.run(batch(config, 1), MICRO)
    tracer.begin(TraceRequest(steps=2, ranks=1), 2)
    for index in (2, 3, 4):
        with tracer.around(index):
            step.run(batch(config, index), MICRO)
    tracer.close()
    folder = tmp_path / TRACES_FOLDER / "step-00000002"

    events = json.loads(gzip.decompress((folder / "rank-00000.json.gz").read_bytes()))["traceEvents"]
    assert {event["name"] for event in events if event["name"].startswith("step ")} == {"step 2", "step 3"}
    assert any(event.get("cat") == "kernel" for event in events)

    snapshot = pickle.loads((folder / "rank-00000.memory.pickle").read_bytes())  # noqa: S301 - written by this test
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    # Weights and two moments, in fp32.
    assert allocated >= 3 * 4 * shape_of(config.model).params
    history = read_history(snapshot)
    assert {"alloc", "free_completed"} <= {event["action"] for event in history}
    places = {frame["filename"] for event in history for frame in event["frames"]}
    assert any(place.endswith("trainer/models/llama.py") for place in places), sorted(places)


def test_the_history_of_memory_ends_with_the_trace(tmp_path: Path) -> None:
    """It would slow down every step that follows."""
    tracer = Tracer(tmp_path, 0, DEVICE, print)
    tracer.begin(TraceRequest(steps=1, ranks=1), 1)
    with tracer.around(1):
        torch.zeros(1024, device=DEVICE)
    tracer.close()
    length = len(read_history(torch.cuda.memory._snapshot()))
    torch.zeros(1024, device=DEVICE)
    assert len(read_history(torch.cuda.memory._snapshot())) == length


def read_history(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the allocations and releases on the first GPU."""
    return [event for events in snapshot["device_traces"][:1] for event in events]
