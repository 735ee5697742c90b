"""Training with compressed gradients: equal on all ranks, exact after a resume, safe from NaN, and with records."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.launch import SMALL_LLAMA, assert_finished, forked, lines
from tests.trainer.ranks import on_ranks
from tests.trainer.resumed_rank import train_across_save
from tests.trainer.test_parallel_engines import FEW, settings
from trainer.api import Trainer
from trainer.compression.compression import Compression, Part, check_gain
from trainer.config.communication import CommunicationConfig
from trainer.config.errors import ConfigError
from trainer.config.load import from_dict
from trainer.parallel.gradients import to_local
from trainer.step import Step

HERE = "tests.trainer.test_compressed_training"
METHODS = {
    "topk": ["communication.compression=topk", "communication.ratio=0.05"],
    "randomk": ["communication.compression=randomk", "communication.ratio=0.05"],
    "powersgd": ["communication.compression=powersgd", "communication.rank=2"],
    "bf16": ["communication.compression=bf16"],
    "fp8": ["communication.compression=fp8"],
    "int8": ["communication.compression=int8"],
}
CASES: list[Any] = [
    (f"ddp bucket_mb=1 {option}", method)
    for method in METHODS
    for option in ("", "find_unused_parameters=true")[: 1 + (method == "topk")]
]
CASES += [
    pytest.param("hsdp shard=2", method, marks=() if method == "topk" else pytest.mark.nightly)
    for method in METHODS
    if method != "powersgd"
]
DAILY_BITS = (("ddp bucket_mb=1", "topk"), ("ddp bucket_mb=1", "powersgd"), ("hsdp shard=2", "topk"))
SHARDED = pytest.param("hsdp shard=2", marks=pytest.mark.nightly)


def config_for(strategy: str, method: str, *more: str) -> dict[str, Any]:
    return config_of("tiny-llama", [*FEW, *settings(strategy), *METHODS.get(method, []), "run.device=cpu", *more])


def share(step: Step, config: Any, index: int) -> dict[str, torch.Tensor]:
    mesh = step.engine.mesh
    size = config.batch.size // mesh.layout.dp_size
    return {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(config, index).items()}


def train(config: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return losses, gradient norms and figures of a few steps with two micro-batches."""
    resolved = from_dict(config)
    step = make_step(resolved)
    results = [step.run(share(step, resolved, index), 1) for index in range(steps)]
    mesh = step.engine.mesh
    return {
        "loss": [float(mesh.mean_over_data(result.loss)) for result in results],
        "norm": [float(result.grad_norm) for result in results],
        "figures": [{name: float(value) for name, value in result.compression.items()} for result in results],
    }


@pytest.mark.nightly_cases("hsdp shard=2-topk")
@pytest.mark.parametrize(("strategy", "method"), CASES)
def test_ranks_agree_and_gradients_are_close(strategy: str, method: str) -> None:
    """The norm of the gradient is computed from each rank's copy, so equal norms are equal gradients."""
    results = on_ranks(f"{HERE}:train", config=config_for(strategy, method), steps=4)
    whole = on_ranks(f"{HERE}:train", config=config_of("tiny-llama", [*FEW, *settings(strategy)]), steps=4)[0]
    assert all(result["norm"] == results[0]["norm"] for result in results)
    assert all(result["loss"] == results[0]["loss"] for result in results)
    assert results[0]["loss"][0] == whole["loss"][0]
    assert results[0]["norm"] != whole["norm"]
    if method in ("bf16", "fp8", "int8"):
        assert results[0]["norm"] == pytest.approx(whole["norm"], rel=2e-2)
        assert results[0]["loss"] == pytest.approx(whole["loss"], rel=2e-3)
    for figures in (figures for result in results for figures in result["figures"]):
        assert figures["compression_ratio"] > 1.5
        assert figures["wire_mb"] > 0
        assert 0 < figures["compression_residual"] < 20


def train_to_the_bit(config: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a few steps, and a digest of the weights, the moments and what is left over."""
    resolved = from_dict(config)
    step = make_step(resolved)
    results = [step.run(share(step, resolved, index), 1) for index in range(4)]
    digest = sha256()
    for name, value in sorted({**step.tensors(), **step.private_tensors()}.items()):
        digest.update(name.encode() + to_local(value).detach().contiguous().numpy().tobytes())
    figures = [{name: float(value) for name, value in result.compression.items()} for result in results]
    return {"norms": [float(result.grad_norm) for result in results], "figures": figures, "digest": digest.hexdigest()}


@pytest.mark.nightly_cases("ddp bucket_mb=1-topk")
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        pytest.param(strategy, method, marks=() if (strategy, method) in DAILY_BITS else pytest.mark.nightly)
        for strategy in ("ddp bucket_mb=1", "hsdp shard=2", "hsdp shard=2 zero=1")
        for method in METHODS
        if not (method == "powersgd" and "hsdp" in strategy)
    ],
)
def test_both_engines_have_the_same_bits(strategy: str, method: str) -> None:
    """Weights, residuals and bytes, with two micro-batches per step."""
    more = ["model.vocab_size=16384"] if method == "topk" and "ddp" in strategy else []
    ours, theirs = (
        on_ranks(f"{HERE}:train_to_the_bit", config=config_for(f"{strategy} engine={engine}", method, *more))
        for engine in ("muster", "torch")
    )
    assert ours == theirs


@pytest.mark.parametrize("strategy", ["ddp", SHARDED])
def test_gradients_are_sent_whole_until_the_first_compressed_step(strategy: str) -> None:
    config = config_for(strategy, "topk", "communication.warmup_steps=2")
    results = on_ranks(f"{HERE}:train", config=config, steps=4)
    whole = on_ranks(f"{HERE}:train", config=config_of("tiny-llama", [*FEW, *settings(strategy)]), steps=4)[0]
    for result in results:
        assert result["norm"][:2] == pytest.approx(whole["norm"][:2], rel=1e-5)
        assert result["norm"][2] != pytest.approx(whole["norm"][2], rel=1e-3)
        assert [figures["compression_ratio"] > 1 for figures in result["figures"]] == [False, False, True, True]
        assert ["compression_residual" in figures for figures in result["figures"]] == [False, False, True, True]


def train_with_a_bad_gradient(config: dict[str, Any]) -> dict[str, Any]:
    """Make the gradient of one rank infinite in the third step, and compare its state before and after."""
    resolved = from_dict(config)
    step = make_step(resolved)
    skipped, states = [], []
    for index in range(5):
        handles = []
        if index == 2 and dist.get_rank() == 1:
            first = next(value for _, value in step.engine.named_parameters())
            handles = [first.register_hook(lambda gradient: gradient * float("inf"))]
        states.append({name: value.clone() for name, value in step.private_tensors().items()})
        skipped.append(float(step.run(share(step, resolved, index), 1).skipped))
        for handle in handles:
            handle.remove()
    same = [all(torch.equal(states[at][name], states[at + 1][name]) for name in states[0]) for at in range(4)]
    finite = all(bool(value.isfinite().all()) for value in step.private_tensors().values())
    return {"skipped": skipped, "same": same, "finite": finite}


@pytest.mark.parametrize("method", ["topk", "randomk", "powersgd", "int8"])
def test_a_skipped_update_leaves_no_trace(method: str) -> None:
    for result in on_ranks(f"{HERE}:train_with_a_bad_gradient", config=config_for("ddp", method)):
        assert result["skipped"] == [0, 0, 1, 0, 0]
        assert result["finite"]
        assert result["same"][2]
        if method != "int8":
            assert not any((result["same"][0], result["same"][1], result["same"][3]))


def train_and_save(config: dict[str, Any], folder: str, resumes: bool) -> dict[str, Any]:
    trainer, results = train_across_save(config, folder, resumes, describe_residuals)
    left_over = {name: float(value.double().norm()) for name, value in trainer.engine.private_tensors()}
    buckets = trainer.engine.compression._buckets if trainer.engine.compression else 0
    return {**results, "left_over": left_over, "buckets": buckets}


def describe_residuals(trainer: Trainer) -> dict[str, Any]:
    """Return the norm of each residual by name, and notes about those that were not restored."""
    private = trainer.engine.private_tensors()
    norms = {name: float(value.double().norm()) for name, value in private if name.startswith("residual.")}
    return {"norms": norms, "notes": list(trainer.restore_notes)}


@pytest.mark.nightly_cases("ddp-randomk", "ddp-powersgd")
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        *(("ddp", method) for method in ("topk", "randomk", "powersgd", "int8")),
        pytest.param("hsdp shard=2", "topk", marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_run_has_the_same_bits(strategy: str, method: str, tmp_path: Path) -> None:
    check_resume(strategy, strategy, method, tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", SHARDED])
def test_residuals_go_from_one_engine_to_the_other(strategy: str, tmp_path: Path) -> None:
    check_resume(strategy, f"{strategy} engine=muster", "topk", tmp_path)


def check_resume(saving: str, resuming: str, method: str, folder: Path) -> None:
    """Check that a run under the second strategy continues the first one's with the same bits."""
    before_save, after_save = (
        config_for(strategy, method, "communication.warmup_steps=1", "batch.micro=1") for strategy in (saving, resuming)
    )
    straight = on_ranks(f"{HERE}:train_and_save", config=before_save, folder=str(folder), resumes=False)
    resumed = on_ranks(f"{HERE}:train_and_save", config=after_save, folder=str(folder), resumes=True)
    for before, after in zip(straight, resumed, strict=True):
        assert after["measured"]["notes"] == []
        assert (sum(after["measured"]["norms"].values()) > 0) == (method != "int8")
        assert after == before


@pytest.mark.nightly_cases("topk")
@pytest.mark.parametrize("method", ["topk", pytest.param("randomk", marks=pytest.mark.nightly), "powersgd"])
def test_other_buckets_keep_the_residuals(method: str, tmp_path: Path) -> None:
    config = config_for("ddp", method, "batch.micro=1", "model.vocab_size=16384", "parallel.bucket_mb=1")
    straight = on_ranks(f"{HERE}:train_and_save", ranks=2, config=config, folder=str(tmp_path), resumes=False)
    config["parallel"]["bucket_mb"] = 25
    resumed = on_ranks(f"{HERE}:train_and_save", ranks=2, config=config, folder=str(tmp_path), resumes=True)
    for before, after in zip(straight, resumed, strict=True):
        assert before["buckets"] > after["buckets"]
        assert after["measured"]["notes"] == []
        assert after["measured"] == before["measured"]
        assert all(norm > 0 for name, norm in after["measured"]["norms"].items() if "norm" not in name)
        # The weights are those of the checkpoint; later steps select other elements.
        assert after["losses"][0] == before["losses"][0]
        assert after["losses"][1] == pytest.approx(before["losses"][1], rel=1e-2)


@pytest.mark.parametrize(
    ("ranks", "method", "reason"),
    [
        (4, "topk", "the ranks are laid out differently now"),
        (1, "topk", "the ranks are laid out differently now"),
        (1, "none", "the ranks are laid out differently now"),
        (2, "none", "this run does not use them"),
        (2, "bf16", "this run does not use them"),
    ],
)
def test_residuals_that_are_dropped_are_named(ranks: int, method: str, reason: str, tmp_path: Path) -> None:
    config = config_for("ddp", "topk", "batch.micro=1")
    on_ranks(f"{HERE}:train_and_save", ranks=2, config=config, folder=str(tmp_path), resumes=False)
    config = config_for("ddp", method, "batch.micro=1")
    for result in on_ranks(f"{HERE}:train_and_save", ranks=ranks, config=config, folder=str(tmp_path), resumes=True):
        [note] = result["measured"]["notes"]
        assert note.startswith(f"not restored, because {reason}: residual.")
        assert note.endswith(" more")
        assert not any(result["measured"]["norms"].values())


def test_a_run_records_bytes_ratio_and_residual(tmp_path: Path) -> None:
    arguments = [*SMALL_LLAMA, "steps=3", "batch.size=4", "batch.micro=1", "run.folder=run", "checkpoint.every=never"]
    arguments += ["parallel.strategy=ddp", "communication.compression=topk"]
    with forked(2, arguments, tmp_path) as run:
        assert_finished(run)
    for rank in range(2):
        records = lines(tmp_path / "run" / "metrics" / f"rank-{rank:05d}.jsonl")
        assert len(records) == 3
        assert all(record["compression_ratio"] > 90 for record in records)
        assert all(0 < record["wire_mb"] < 0.01 for record in records)
        assert all(0.5 < record["compression_residual"] < 5 for record in records)


class PeerLostError(Exception):
    """An error that only this file knows, so that nothing else can raise it."""


def fail_in_a_bucket(config: dict[str, Any]) -> list[str]:
    """Return message and frames of the error of a step in which a collective fails on the thread that compresses."""
    resolved = from_dict(config)
    step = make_step(resolved)
    engine: Any = step.engine

    def fail(_gradient: Any, _parts: Any) -> Any:
        raise PeerLostError("the peer is gone")

    engine.compression._compress = fail
    with pytest.raises(PeerLostError) as raised:
        step.run(share(step, resolved, 0), 1)
    return [str(raised.value), *(frame.name for frame in traceback.extract_tb(raised.value.__traceback__))]


@pytest.mark.parametrize("strategy", ["ddp", "ddp engine=muster", "hsdp shard=2 engine=muster"])
def test_an_error_in_a_bucket_ends_the_step_with_its_own_type_and_traceback(strategy: str) -> None:
    for message, *frames in on_ranks(f"{HERE}:fail_in_a_bucket", config=config_for(strategy, "topk")):
        assert message == "the peer is gone"
        assert {"raise_error", "average", "fail"} <= set(frames)


def leave_an_engine(config: dict[str, Any]) -> dict[str, Any]:
    """Train a step, forget the engine, and return whether its thread and its residuals are still there."""
    resolved = from_dict(config)
    # The error of an earlier test may hold its engine until a collection.
    before = set(threading.enumerate())
    step: Any = make_step(resolved)
    step.run(share(step, resolved, 0), 1)
    [thread] = [thread for thread in threading.enumerate() if thread.name == "compression" and thread not in before]
    compression = weakref.ref(step.engine.compression)
    del step
    gc.collect()
    thread.join(60)
    return {"runs": thread.is_alive(), "holds_residuals": compression() is not None}


@pytest.mark.nightly_cases("ddp-2")
@pytest.mark.parametrize(
    ("strategy", "ranks"), [("ddp", 2), ("ddp engine=muster", 2), ("hsdp shard=2 engine=muster", 4)]
)
def test_the_thread_and_the_residuals_end_with_the_engine(strategy: str, ranks: int) -> None:
    for result in on_ranks(f"{HERE}:leave_an_engine", ranks=ranks, config=config_for(strategy, "topk")):
        assert result == {"runs": False, "holds_residuals": False}


def average_odd_buckets() -> tuple[list[float], float]:
    """Average an empty bucket and one in half precision."""
    settings = CommunicationConfig(compression="topk", ratio=0.4, smoothing=0.0)
    compression = Compression(settings, None, [Part("empty", (0,)), Part("half", (5,))], torch.device("cpu"))
    compression.begin(0, 0)
    empty, half = torch.zeros(0), torch.tensor([1.0, 0.0, 0.0, 8.0, 0.0], dtype=torch.float16)
    compression.average(empty, [Part("empty", (0,))])
    compression.average(half, [Part("half", (5,))])
    compression.settle(torch.zeros(()))
    return half.tolist(), float(compression.measure()["compression_residual"])


def test_empty_and_short_buckets_are_averaged() -> None:
    for result in on_ranks(f"{HERE}:average_odd_buckets"):
        assert result == ([1, 0, 0, 8, 0], 0)


def smooth_three_steps() -> list[list[float]]:
    """Return what the optimizer gets in a whole step, in a skipped one and in two compressed ones."""
    settings = CommunicationConfig(compression="topk", ratio=0.5, smoothing=0.75, warmup_steps=1)
    part = Part("weight", (2,))
    compression = Compression(settings, None, [part], torch.device("cpu"))
    results = []
    for step, (values, skipped) in enumerate([([4.0, 8.0], 0), ([64.0, 0.0], 1), ([16.0, 0.0], 0), ([0.0, 0.0], 0)]):
        gradient = torch.tensor(values)
        compression.begin(step, 0)
        compression.average(gradient, [part])
        compression.settle(torch.tensor(float(skipped)))
        results.append(gradient.tolist())
    return results


def test_the_optimizer_gets_a_moving_average_that_a_skipped_step_leaves_alone() -> None:
    """It begins with the last whole gradient: 4 is followed by 0.75 * 4 + 0.25 * 16, and then by 0.75 times that."""
    for results in on_ranks(f"{HERE}:smooth_three_steps", ranks=2):
        assert results == [[4, 8], [19, 6], [7, 6], [5.25, 4.5]]


def test_topk_on_many_ranks_is_refused_if_it_saves_nothing() -> None:
    check_gain(CommunicationConfig(compression="topk"), 199)
    check_gain(CommunicationConfig(compression="randomk", ratio=0.5), 200)
    with pytest.raises(ConfigError) as refusal:
        check_gain(CommunicationConfig(compression="topk"), 200)
    assert (
        "communication.ratio: 0.01, but topk on 200 ranks sends fewer bytes than an all-reduce only below 0.01; use"
        in str(refusal.value)
    )


LEARNED = ["steps=300", "batch.size=32", "batch.micro=8", "optimizer.lr=3e-3", "data.samples=4000"]


@pytest.mark.nightly
def test_topk_reaches_the_loss_of_whole_gradients(tmp_path: Path) -> None:
    """One percent of the gradient, on 4 ranks, after the same number of steps: within 2 %."""
    final = {}
    for method in ("none", "topk"):
        arguments = [*SMALL_LLAMA, *LEARNED, f"run.folder={method}", "checkpoint.every=never", "parallel.strategy=ddp"]
        with forked(4, [*arguments, f"communication.compression={method}"], tmp_path) as run:
            assert_finished(run)
        records = lines(tmp_path / method / "metrics" / "rank-00000.jsonl")
        final[method] = sum(record["loss"] for record in records[-20:]) / 20
    assert final["topk"] < 1.02 * final["none"]
