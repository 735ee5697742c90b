"""Write the folder of a run without training: 4 ranks, one of them slow, a kill, and a resume on 2 ranks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

BEGAN = 1_790_000_000.0
CONFIG = """\
name: made
steps: 400
model: {family: gpt2}
optimizer: {clip_norm: 1.0}
watchdog: {straggler: 1.3}
"""


def make_run(folder: Path, *, steps: int = 400, profiled: bool = True, finished: bool = True) -> Path:
    """Write the files of a run and return its folder."""
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    for rank in range(4):
        last = steps if rank < 2 else steps // 2
        write(
            folder / "metrics" / f"rank-{rank:05d}.jsonl", [line(step, rank, profiled) for step in range(1, last + 1)]
        )
    if profiled:
        write(folder / "metrics" / "communication-00000.jsonl", [profile(100)])
        for rank in range(4):
            (folder / "metrics" / f"timeline-{rank:05d}.json").write_text(json.dumps(timeline(100, rank)))
    write(folder / "metrics" / "evaluation-00000.jsonl", [evaluation(step) for step in range(100, steps + 1, 100)])
    write(folder / "events.jsonl", events(steps, finished))
    if finished:
        outcome = {"outcome": "finished", "reason": f"all {steps} steps done", "step": steps, "time": BEGAN + 900}
        (folder / "outcome.json").write_text(json.dumps(outcome))
    return folder


def write(path: Path, items: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def line(step: int, rank: int, profiled: bool = True) -> dict[str, Any]:
    rng = Random(step * 10 + rank)
    own = (0.085 if rank == 2 else 0.06) * rng.uniform(0.95, 1.1) * (8 if step == 1 else 1)
    data = 0.002 * rng.uniform(0.5, 1.5)
    waiting = max(0.095 - own, 0.004) if profiled else 0.0
    total = own + waiting
    parts = {"communication_s": waiting} if profiled else {}
    return {
        "step": step,
        "time": BEGAN + (20 + step * 0.1 if step <= 200 else 60 + step * 0.1),
        "loss": "nan" if step == 250 else 6.0 * math.exp(-step / 120) + 2.5 + rng.gauss(0, 0.06),
        "grad_norm": 1.1 + 3 * math.exp(-step / 40) + abs(rng.gauss(0, 0.2)),
        "skipped": float(step == 250),
        "lr": 3e-4,
        "tokens_per_s": 32 * 1024 / total,
        "mfu": 0.45 * 0.095 / total,
        "step_s": total,
        "data_s": data,
        "compute_s": own - data - 0.002,
        **parts,
        "checkpoint_s": 0.001,
        "other_s": 0.001,
        "own_s": own,
        "communication_from": "profile of step 100" if profiled else "not measured",
        "memory_gb": 31.5 + rank * 0.8 + (0 if step < 5 else 2),
    }


def evaluation(step: int) -> dict[str, Any]:
    """Return the figures of an evaluation; the loss is lowest at step 300."""
    loss = 2.5 + abs(step - 300) / 200
    return {"step": step, "time": BEGAN + 20 + step * 0.1, "loss": loss, "accuracy": 0.31, "samples": 2048}


def profile(step: int) -> dict[str, Any]:
    names = ("collective", "group", "count", "mb", "ms", "exposed_ms", "link")
    rows = [
        ("all_gather", "shard", 24, 512.0, 18.0, 2.5, "node"),
        ("reduce_scatter", "shard", 12, 256.0, 22.0, 9.0, "node"),
    ]
    traffic = [dict(zip(names, row, strict=True)) for row in rows]
    times = {"span_ms": 95.0, "compute_ms": 78.0, "communication_ms": 38.0, "exposed_ms": 11.5}
    return {"step": step, **times, "traffic": traffic}


def timeline(step: int, rank: int) -> dict[str, Any]:
    """Return a step of 95 ms in which two collectives overlap."""
    began = (BEGAN + 30 + rank * 0.0002) * 1e6
    spans = [("compute", "compute", 0, 60_000), ("all_gather", "communication", 10_000, 28_000)]
    spans += [("reduce_scatter", "communication", 20_000, 90_000), ("compute", "compute", 91_000, 95_000)]
    items = []
    for name, kind, start, end in spans:
        details = {"group": "shard", "link": "node", "mb": 21.3} if kind == "communication" else {}
        items.append({"name": name, "kind": kind, "start_us": began + start, "end_us": began + end, **details})
    return {"step": step, "rank": rank, "events": items}


def events(steps: int, finished: bool) -> list[dict[str, Any]]:
    peak = {"formula": "MFU = ...", "peak": 989.4e12, "source": "data sheet of NVIDIA H200", "achieved": 791e12}
    hosts = ["node-1", "node-2"]
    first: list[tuple[float, str, Any]] = [
        (3.0, "started", {"began": BEGAN, "attempt": "0.0"}),
        (3.1, "imported", {}),
        (6.4, "joined", {"world_size": 4, "hosts": hosts}),
        (12.0, "built", {"strategy": "fsdp", "micro": 4}),
        (20.1, "first_step", {"step": 1}),
        (21.0, "peak", peak),
        (30.0, "save_published", {"step": 100, "message": "", "seconds": 2.2}),
        (40.0, "save_published", {"step": 200, "message": "", "seconds": 2.1}),
        (41.5, "straggler", {"rank": 2, "host": "node-2", "message": "rank 2 on node-2 works 85 ms per step <script>"}),
    ]
    second: list[tuple[float, str, Any]] = [
        (66.0, "started", {"began": BEGAN + 63.2, "attempt": "1.0"}),
        (66.1, "imported", {}),
        (69.0, "joined", {"world_size": 2, "hosts": hosts[:1]}),
        (74.0, "built", {"strategy": "fsdp", "micro": 4}),
        (77.5, "loaded", {"step": 200, "written_by": 4}),
        (80.1, "first_step", {"step": 201}),
        (81.0, "peak", peak),
        (90.0, "save_failed", {"step": 300, "message": "No space left on device", "seconds": 0.0}),
    ]
    last: list[tuple[float, str, Any]] = (
        [(101.0, "ended", {"outcome": "finished", "reason": "done", "step": steps})] if finished else []
    )
    return [{"time": BEGAN + seconds, "event": kind, **fields} for seconds, kind, fields in (*first, *second, *last)]
