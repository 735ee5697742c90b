"""Two ranks on one GPU with real NCCL: curves like one rank, traffic in the profile, hangs are reported."""

from __future__ import annotations

import pickle
import socket
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.gpu.gpu_ranks import finish, start
from tests.trainer.launch import assert_finished, lines, losses, torchrun
from trainer.config.load import load
from trainer.models.registry import build_model

# Sums over two ranks round in another order than on one rank.
LOSS_TOLERANCE = 1e-3
STEPS = 12
COMMON = [
    "tiny-llama", f"steps={STEPS}", "batch.size=8", "batch.micro=2", "schedule.warmup=0", "checkpoint.every=0",
    "metrics.every=1", "metrics.profile_every=8", "run.device=cuda", "run.folder=run",
]  # fmt: skip
MB = 4 * 1e-6


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ddp", {"all_reduce"}),
        ("fsdp", {"all_gather", "reduce_scatter"}),
        ("fsdp zero=1", {"all_gather", "reduce_scatter"}),
        ("fsdp engine=muster offload=true", {"all_gather", "reduce_scatter"}),
        ("hsdp shard=1", {"all_reduce"}),
        ("single tensor=2", {"all_reduce"}),
        ("single pipeline=2", {"send_recv"}),
        ("single context=2", {"all_gather", "reduce_scatter", "all_reduce"}),
        ("fsdp context=2", {"all_gather", "reduce_scatter"}),
    ],
)
def test_two_ranks_train_like_one_with_profiled_traffic(strategy: str, expected: set[str], tmp_path: Path) -> None:
    name, *options = strategy.split()
    arguments = [*COMMON, f"parallel.strategy={name}", *(f"parallel.{setting}" for setting in options)]
    with torchrun(2, arguments, tmp_path, program="tests.gpu.one_gpu_rank") as run:
        assert_finished(run)
    folder = tmp_path / "run"
    assert losses(folder) == pytest.approx(train_alone(), abs=LOSS_TOLERANCE)
    for rank in range(2):
        profile = lines(folder / "metrics" / f"communication-{rank:05d}.jsonl")[-1]
        assert profile["step"] == 8
        traffic = profile["traffic"]
        print(f"\n{strategy}, rank {rank}: {traffic}")
        assert traffic
        assert expected <= {row["collective"] for row in traffic}
        assert all(row["ms"] > 0 and row["count"] > 0 for row in traffic)
        assert all(0 <= row["exposed_ms"] <= row["ms"] * 1.01 for row in traffic)
        # NCCL has one kernel for sends and receives, which reports neither size nor peer.
        sized = [row for row in traffic if row["collective"] in expected - {"send_recv"}]
        assert all(row["mb"] > 0 and row["group"] for row in sized)
        assert 0 < profile["communication_ms"] <= profile["span_ms"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_that_share_experts_train_like_one(strategy: str, tmp_path: Path) -> None:
    arguments = [*COMMON[1:], f"parallel.strategy={strategy}", "parallel.expert=2"]
    with torchrun(2, ["tiny-moe", *arguments], tmp_path, program="tests.gpu.one_gpu_rank") as run:
        assert_finished(run)
    assert losses(tmp_path / "run") == pytest.approx(train_alone("tiny-moe"), abs=LOSS_TOLERANCE)


def test_the_size_of_an_all_reduce_is_that_of_the_gradients(tmp_path: Path) -> None:
    with torchrun(2, [*COMMON, "parallel.strategy=ddp"], tmp_path, program="tests.gpu.one_gpu_rank") as run:
        assert_finished(run)
    weights = sum(parameter.numel() for parameter in build_model(load("tiny-llama", []).model).parameters())
    traffic = lines(tmp_path / "run" / "metrics" / "communication-00000.jsonl")[-1]["traffic"]
    sent = sum(row["mb"] for row in traffic if row["collective"] == "all_reduce")
    # Apart from gradients, only a few single numbers are summed.
    assert sent == pytest.approx(weights * MB, rel=0.01)


def test_a_rank_that_hangs_is_named_and_all_collectives_are_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*COMMON[:-1], f"run.folder={folder}", "parallel.strategy=ddp", "watchdog.hang_s=6"]
    statuses, output = finish(start(2, "tests.gpu.one_gpu_rank", *arguments, HOLD="1:7"))
    assert 76 in statuses, output
    assert 0 not in statuses, output
    host = socket.gethostname()
    assert f"behind: rank 1 on {host} (step 7, step)" in (folder / "hang" / "report.txt").read_text(), output
    assert "in held_step" in (folder / "hang" / "rank-00001.txt").read_text()
    assert "synchronize" in (folder / "hang" / "rank-00000.txt").read_text()
    waiting, held = (read_collectives(folder, rank) for rank in range(2))
    assert waiting[-1]["state"] != "completed"
    assert held[-1]["state"] == "completed"
    # The waiting rank has started a collective that the other never joined.
    assert newest(waiting) > newest(held)
    assert {entry["profiling_name"] for entry in waiting} >= {"nccl:all_reduce"}


def read_collectives(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return the recorded collectives, as fr_trace reads them."""
    recorded = pickle.loads((folder / "hang" / f"collectives-rank-{rank}").read_bytes())  # noqa: S301  # written by our own ranks
    entries: list[dict[str, Any]] = recorded["entries"]
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def newest(entries: list[dict[str, Any]]) -> int:
    return max(int(entry["collective_seq_id"]) for entry in entries)


@cache
def train_alone(preset: str = "tiny-llama") -> dict[int, float]:
    folder = Path(mkdtemp(prefix="muster-gpu-"))
    with torchrun(1, [preset, *COMMON[1:], "parallel.strategy=single"], folder) as run:
        assert_finished(run)
    return losses(folder / "run")
