"""`auto` on a GPU that others have filled: it chooses by the memory that is left, and the run then fits into that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.gpu.needs import GIB
from tests.gpu.short_run import DEVICE
from tests.trainer.launch import alone, events, finished, lines
from trainer.config.load import load

MODEL = [
    "tiny-llama", "model.dim=1024", "model.layers=16", "model.heads=16", "model.kv_heads=4", "model.ffn=4096",
    "model.seq_len=2048", "model.vocab_size=32000", "data.samples=256", "batch.size=32", "precision=bf16",
    "steps=4", "metrics.every=1", "checkpoint.every=0", "run.device=cuda", "run.folder=run",
]  # fmt: skip
CHOSEN = re.compile(r"^(?P<name>.+), micro-batch (?P<micro>\d+): (?P<gib>[\d.]+) GiB \(.* fits$")
# What is promised is an upper bound; one that is far above what is needed would waste the GPU.
MOST, LEAST = 1.1, 0.6


@pytest.mark.parametrize(("left", "recompute"), [(16.0, ["none"]), (8.5, ["selective", "full"])])
def test_what_is_chosen_fits_into_what_is_left(left: float, recompute: list[str], tmp_path: Path) -> None:
    with filled_up_to(left), alone(MODEL, tmp_path) as run:
        finished(run)
    folder = tmp_path / "run"
    why = [event["why"] for event in events(folder, "chosen")]
    choice = next(found for found in map(CHOSEN.match, why) if found)
    settled = load(str(folder / "config.yaml"), [])
    assert settled.parallel.strategy == "single"
    assert settled.parallel.recompute in recompute
    assert settled.batch.micro == int(choice["micro"])
    promised = float(choice["gib"]) * GIB
    peak = max(line["memory_gb"] for line in lines(folder / "metrics" / "rank-00000.jsonl")) * 1e9
    print(f"\n{left:g} GiB left: {why[-1]}; measured {peak / GIB:.2f} GiB, {peak / promised:.2f} of it")
    assert LEAST * promised < peak < MOST * promised, f"{peak / GIB:.2f} GiB; {why}"


def test_where_nothing_fits_it_is_said_before_the_first_step(tmp_path: Path) -> None:
    with filled_up_to(3.0), alone(MODEL, tmp_path) as run:
        assert run.wait() == 2, run.said
    assert "nothing fits" in run.said
    assert not (tmp_path / "run" / "metrics").exists()


@contextmanager
def filled_up_to(left_gib: float) -> Iterator[None]:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(DEVICE)[0]
    ballast = torch.empty(int(free - left_gib * GIB), dtype=torch.uint8, device=DEVICE)
    try:
        yield
    finally:
        del ballast
        torch.cuda.empty_cache()
