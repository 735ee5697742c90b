"""Loss scaling, skipped updates, clipping and automatic settings: the same code and the same bits for both engines."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.launch import SMALL_LLAMA, assert_finished, events, forked, losses
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings
from tests.trainer.test_parallel_engines import FEW
from trainer.config.load import from_dict
from trainer.parallel.gradients import to_local

HERE = "tests.trainer.test_both_engines"
CLIP_NORM = 0.3
STRATEGIES = {
    "ddp": 4,
    "fsdp zero=1": 2,
    "fsdp zero=2": 2,
    "fsdp zero=3": 2,
    "hsdp shard=2": 4,
    "single pipeline=2": 2,
    "ddp pipeline=2": 4,
    "fsdp pipeline=2": 4,
}
DAILY = ("ddp", "hsdp shard=2")


def train_with_an_overflow(config: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of four steps, in the first of which the outputs of rank 1 are infinite, and all bits."""
    resolved = from_dict(config)
    step = make_step(resolved)
    mesh, scale = step.engine.mesh, step.scale
    assert scale is not None
    size = resolved.batch.size // mesh.layout.dp_size
    hook = None
    if dist.get_rank() == 1:
        hook = step.engine.modules[0].register_forward_hook(lambda _module, _inputs, outputs: outputs * torch.inf)
    figures: dict[str, list[float]] = {"losses": [], "norms": [], "scales": [float(scale.scale)], "skipped": []}
    for index in range(4):
        batch = {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(resolved, index).items()}
        result = step.run(batch, 1)
        if hook is not None:
            hook.remove()
        if index:
            figures["losses"].append(float(result.loss))
            figures["norms"].append(float(result.grad_norm))
        figures["scales"].append(float(scale.scale))
        figures["skipped"].append(float(result.skipped))
    digest = sha256()
    for name, value in sorted(step.tensors().items()):
        digest.update(name.encode() + to_local(value).detach().contiguous().numpy().tobytes())
    return {**figures, "digest": digest.hexdigest()}


@pytest.mark.parametrize(
    "strategy", [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in STRATEGIES]
)
def test_scaled_clipped_and_skipped_updates_have_the_same_bits(strategy: str) -> None:
    """The overflow of one rank halves the scale and skips the update everywhere; all later updates are clipped."""
    base = [*FEW, *settings(strategy), "precision=fp16", f"optimizer.clip_norm={CLIP_NORM}", "batch.micro=1"]
    ours, theirs = (
        on_ranks(
            f"{HERE}:train_with_an_overflow",
            ranks=STRATEGIES[strategy],
            config=config_of("tiny-llama", [*base, f"parallel.engine={engine}"]),
        )
        for engine in ("muster", "torch")
    )
    assert ours == theirs
    for result in ours:
        assert result["skipped"] == [1, 0, 0, 0]
        assert result["scales"][1:] == [result["scales"][0] / 2] * 4
        assert min(result["norms"]) > CLIP_NORM
        assert result["norms"] == ours[0]["norms"]


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_automatic_settings_are_the_same_and_train_alike(strategy: str, tmp_path: Path) -> None:
    results = {}
    for engine in ("torch", "muster"):
        arguments = [*SMALL_LLAMA, "steps=4", "batch.size=8", "batch.micro=auto", "checkpoint.every=never"]
        arguments += [f"parallel.strategy={strategy}", f"parallel.engine={engine}", f"run.folder={engine}"]
        with forked(2, arguments, tmp_path) as run:
            assert_finished(run)
        folder = tmp_path / engine
        (built,) = events(folder, "built")
        results[engine] = (built["strategy"], built["micro"], losses(folder))
    assert results["muster"] == results["torch"]
    assert results["muster"][:2] == ("ddp" if strategy == "auto" else strategy, 4)
