"""Mixtures of experts: what they compute, how their loads are balanced, and that a run resumes to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.launch import lines
from trainer.__main__ import main
from trainer.auto.measure import measure_sizes
from trainer.config.layout import Layout
from trainer.config.load import from_dict, load
from trainer.config.models import MixtralConfig
from trainer.expert_balance import ExpertBalance
from trainer.life.outcome import Code
from trainer.models.experts import MixtureOfExperts
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.models.routing import Router, compute_balance_loss
from trainer.models.shape import shape_of
from trainer.parallel.mesh import Mesh
from trainer.step import RunningStatistics, Step

CONFIG = MixtralConfig(vocab_size=61, dim=16, layers=2, heads=2, kv_heads=2, ffn=24, seq_len=16, experts=6, top_k=3)
# Clipping would hide a gradient of another size.
TINY = ["model.dim=32", "model.ffn=16", "model.vocab_size=64", "batch.size=8", "optimizer.clip_norm=0"]


def test_a_mixture_adds_the_outputs_of_the_chosen_experts() -> None:
    """Outputs and all gradients equal those of experts that are called one by one for each token."""
    mixture, x = make_mixture(replace(CONFIG, balance="none")), torch.randn(2, 5, 16, requires_grad=True)
    mixture(x).square().sum().backward()
    gradients = {name: value.grad for name, value in mixture.named_parameters()} | {"x": x.grad}
    mixture.zero_grad()
    x.grad = None
    expected = compute_one_by_one(mixture, x)
    assert torch.allclose(mixture(x), expected, atol=1e-6)
    expected.square().sum().backward()
    for name, value in [*mixture.named_parameters(), ("x", x)]:
        assert torch.allclose(gradients[name], value.grad, atol=1e-5), name


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    mixture = make_mixture(CONFIG)
    with torch.no_grad():
        # The scores of a token of ones grow with the number of the expert.
        mixture.router.weight.copy_(torch.arange(6.0)[:, None].expand(-1, 16))
    mixture(torch.ones(1, 4, 16)).sum().backward()
    gradient = mixture.experts.gate.weight.grad
    assert [bool(expert.any()) for expert in gradient] == [False, False, False, True, True, True]


def test_the_balancing_loss_is_that_of_transformers() -> None:
    logits = torch.randn(40, 6)
    probabilities = logits.softmax(-1)
    counts = probabilities.topk(3).indices.flatten().bincount(minlength=6)
    expected = load_balancing_loss_func((logits,), num_experts=6, top_k=3)
    assert torch.allclose(compute_balance_loss(probabilities, counts), expected)
    assert float(compute_balance_loss(torch.full((8, 4), 0.25), torch.tensor([4, 4, 4, 4]))) == pytest.approx(2)


def test_the_balancing_loss_adds_its_gradient_with_the_scale_of_the_main_loss() -> None:
    """The router's gradient is that of (main loss + weight / layers x balancing loss) x scale."""
    mixture, x = make_mixture(replace(CONFIG, balance_loss=0.5)), torch.randn(2, 5, 16)
    mixture.router.loss_scale.fill_(4.0)
    (mixture(x).square().sum() * 4).backward()
    gradient = mixture.router.weight.grad
    mixture.zero_grad()
    probabilities = F.linear(x.flatten(0, 1), mixture.router.weight).softmax(-1)
    counts = probabilities.topk(3).indices.flatten().bincount(minlength=6)
    loss = compute_one_by_one(mixture, x).square().sum() + 0.5 / 2 * compute_balance_loss(probabilities, counts)
    (loss * 4).backward()
    assert gradient is not None
    assert torch.allclose(gradient, mixture.router.weight.grad, atol=1e-4)


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_loads_become_equal(balance: Any) -> None:
    """Two of six experts get most of the tokens at first; without balance, it stays so."""
    first, last = train_router(replace(CONFIG, balance=balance, balance_loss=1.0, balance_rate=0.01))
    assert first > 1.6
    assert last < 1.1
    assert train_router(replace(CONFIG, balance="none")) == (first, first)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_bias_follows_the_loads_of_a_step(recompute: str) -> None:
    step = make_step(load_tiny("model.balance=bias", "model.balance_rate=0.25", f"parallel.recompute={recompute}"))
    batch = global_batch(step._config, 0)
    result = step.run(batch, micro=4)
    assert result.expert_load is not None
    routers = list_routers(step)
    for router in routers:
        load = router.load.float()
        assert router.balance_bias.tolist() == (0.25 * (load.mean() - load).sign()).tolist()
    ratios = [float(router.load.max() / router.load.float().mean()) for router in routers]
    assert float(result.expert_load) == pytest.approx(max(ratios))
    assert "buffer.layers.0.ffn.router.balance_bias" in step.saved_tensors()


def test_a_skipped_step_leaves_the_bias_as_it_was() -> None:
    step = make_step(load_tiny("model.balance=bias"))
    statistics = RunningStatistics(step.engine.named_buffers())
    batch = global_batch(step._config, 0)
    step.run(batch, micro=8)
    before = [router.balance_bias.clone() for router in list_routers(step)]
    with torch.no_grad():
        next(iter(step.engine.modules[0].parameters()))[0, 0] = float("nan")
    statistics.record()
    result = step.run({**batch, "inputs": torch.zeros_like(batch["inputs"])}, micro=8)
    assert float(result.skipped) == 1
    statistics.restore(result.skipped)
    assert all(torch.equal(router.balance_bias, old) for router, old in zip(list_routers(step), before, strict=True))


def test_evaluation_does_not_count_loads() -> None:
    model: Any = build_model(CONFIG)
    fill([model], seed=1)
    tokens = torch.randint(0, 61, (2, 16))
    model.eval()(tokens)
    router = model.layers["0"].ffn.router
    assert router.load.sum() == 0
    model.train()(tokens)
    assert router.load.sum() == 2 * 16 * 3


def test_operations_are_counted_for_the_experts_that_a_token_uses() -> None:
    single, all_experts = shape_of(replace(CONFIG, top_k=1)), shape_of(replace(CONFIG, top_k=6))
    assert single.params == all_experts.params
    assert all_experts.multiplied - single.multiplied == 2 * 5 * 3 * 16 * 24
    shape = shape_of(load("qwen3-30b-a3b", []).model)
    table = 151936 * 2048
    # The published 3.3 billion active weights include the embedding.
    assert shape.multiplied + table == pytest.approx(3.3e9, rel=0.02)


def test_the_memory_of_a_mixture_is_measured_without_memory() -> None:
    """More experts per token store more; more experts in a layer do not."""
    batch = {"inputs": torch.zeros(2, 16, dtype=torch.int64)}
    stored = {}
    for precision in ("fp32", "bf16"):
        for experts, top_k in ((4, 1), (8, 1), (8, 4)):
            settings = [f"model.experts={experts}", f"model.top_k={top_k}", f"precision={precision}"]
            stored[precision, experts, top_k] = measure_sizes(load_tiny(*settings), batch, "cpu")
        few, more, used = (stored[precision, *key] for key in ((4, 1), (8, 1), (8, 4)))
        assert more.activations == pytest.approx(few.activations, rel=0.1)
        assert used.activations > 1.5 * more.activations
        assert used.block_products > 1.5 * more.block_products


def test_a_run_records_the_largest_load(tmp_path: Path) -> None:
    fast = ["steps=2", "schedule.warmup=0", "metrics.every=1", "metrics.peak_tflops=1", "run.device=cpu"]
    assert main(["tiny-moe", *TINY, *fast, "checkpoint.every=never", f"run.folder={tmp_path}"]) == Code.FINISHED
    records = lines(tmp_path / "metrics" / "rank-00000.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    # 1 if all loads are equal; 8 / 2 if two of the eight experts get all tokens.
    assert all(1 <= record["expert_load"] <= 4 for record in records)


def compute_one_by_one(mixture: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    experts = mixture.experts
    outputs = []
    for token in x.flatten(0, 1):
        probabilities = F.linear(token, mixture.router.weight).softmax(-1)
        weights, chosen = probabilities.topk(mixture.top_k)
        parts = [
            weight / weights.sum() * (down @ (F.silu(gate @ token) * (up @ token)))
            for weight, gate, up, down in zip(
                weights,
                experts.gate.weight[chosen],
                experts.up.weight[chosen],
                experts.down.weight[chosen],
                strict=True,
            )
        ]
        outputs.append(torch.stack(parts).sum(0))
    return torch.stack(outputs).view(x.shape)


def make_mixture(config: MixtralConfig) -> MixtureOfExperts:
    torch.manual_seed(3)
    mixture = MixtureOfExperts(config)
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return mixture


def train_router(config: MixtralConfig) -> tuple[float, float]:
    """Return the largest load relative to the mean at first and after 100 steps without any other loss."""
    generator = torch.Generator().manual_seed(4)
    router = Router(config)
    balance = ExpertBalance([router], Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False))
    optimizer = torch.optim.SGD(router.parameters(), lr=0.5)
    tokens = torch.randn(600, 16, generator=generator)
    tokens[:, 0] = 1.0
    with torch.no_grad():
        router.weight.normal_(0, 0.1, generator=generator)
        router.weight[:2, 0] += 0.5
    loads = []
    for _ in range(100):
        balance.begin(1, None)
        (router(tokens).weights.sum() * 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        largest = balance.end()
        assert largest is not None
        loads.append(float(largest))
    return loads[0], loads[-1]


def load_tiny(*overrides: str) -> Any:
    return from_dict(config_of("tiny-moe", [*TINY, *overrides, "parallel.strategy=single"]))


def list_routers(step: Step) -> list[Router]:
    return [part for module in step.engine.modules for part in module.modules() if isinstance(part, Router)]
