"""Each recompute mode computes the expected operations twice: none, all except matrix products, or all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.curves import make_step
from tests.trainer.test_parallel_refusals import make_single_mesh
from trainer.config.load import load
from trainer.config.models import LlamaConfig
from trainer.config.schema import ParallelConfig
from trainer.models.functional import compute_loss
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe

CONFIG = LlamaConfig(vocab_size=16, dim=16, layers=2, heads=2, kv_heads=2, ffn=16, seq_len=8)
# Four projections and two feed-forward products in each of two layers; the last product's result is not needed again.
PRODUCTS = 2 * 6


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("mode", "again", "silu"), [("none", 0, 2), ("selective", 0, 4), ("full", PRODUCTS, 4)])
def test_each_mode_recomputes_the_expected_operations(mode: Any, again: int, silu: int) -> None:
    calls, gradient, names = run(mode)
    plain, expected, _ = run("none")
    assert calls["mm"] == plain["mm"] + again
    assert calls["silu"] == silu
    assert torch.equal(gradient, expected)
    assert "layers.0.attention.q.weight" in names


def run(mode: Any) -> tuple[dict[str, int], torch.Tensor, list[str]]:
    model = build_model(CONFIG)
    fill([model], seed=1)
    parallelize(model, Recipe(ParallelConfig(strategy="single", recompute=mode)), make_single_mesh())
    tokens = torch.arange(8).unsqueeze(0)
    with Count() as count:
        compute_loss(model(tokens), tokens).backward()
    parameters = dict(model.named_parameters())
    gradient = parameters["layers.0.attention.q.weight"].grad
    assert gradient is not None
    return count.calls, gradient, list(parameters)


def test_a_graph_is_not_used_if_auto_chooses_to_recompute() -> None:
    config = load("tiny-llama", ["parallel.strategy=single", "compile.cuda_graph=true"])
    chosen = replace(config, parallel=replace(config.parallel, recompute="selective"))
    reason = "parallel.recompute=selective repeats the forward pass"
    assert make_step(chosen).engine.choices == [f"cuda_graph: not used, because {reason}"]
