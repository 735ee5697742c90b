"""On a GPU, the products of all experts in bf16 are one kernel, with the results of one product for each expert."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer.config.models import MixtralConfig
from trainer.config.schema import LoraConfig
from trainer.models import experts
from trainer.models.experts import MixtureOfExperts
from trainer.models.lora import add_lora

CONFIG = MixtralConfig(dim=256, ffn=512, experts=16, top_k=2, layers=1, balance="none")


@pytest.mark.parametrize("tokens", [1, 37, 4096], ids=lambda count: f"{count} tokens")
def test_the_grouped_product_matches_one_product_per_expert(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few tokens, some experts have none, and their gradients are zeros."""
    grouped, is_grouped = run(tokens)
    assert is_grouped
    monkeypatch.setattr(experts, "_has_grouped_product", lambda _: False)
    looped, is_grouped = run(tokens)
    assert not is_grouped
    for name, value in looped.items():
        error = (grouped[name].float() - value.float()).norm() / value.float().norm().clamp(min=1e-9)
        assert float(error) < 1e-2, name


def test_widths_that_no_kernel_takes_are_multiplied_one_by_one() -> None:
    results, is_grouped = run(64, MixtralConfig(dim=256, ffn=508, experts=4, layers=1, balance="none"))
    assert not is_grouped
    assert all(value.isfinite().all() for value in results.values())


def test_the_grouped_product_takes_the_matrices_of_lora(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped, is_grouped = run(512, rank=16)
    assert is_grouped
    monkeypatch.setattr(experts, "_has_grouped_product", lambda _: False)
    looped, _ = run(512, rank=16)
    for name, value in looped.items():
        error = (grouped[name].float() - value.float()).norm() / value.float().norm()
        assert float(error) < 1e-2, name


def test_a_rank_of_lora_that_no_kernel_takes_is_multiplied_one_by_one() -> None:
    results, is_grouped = run(64, rank=12)
    assert not is_grouped
    assert all(value.isfinite().all() for value in results.values())


def run(tokens: int, config: MixtralConfig = CONFIG, rank: int = 0) -> tuple[dict[str, torch.Tensor], bool]:
    """Return the output and all gradients under autocast, and whether a grouped product ran; `rank` is that of LoRA."""
    torch.manual_seed(1)
    with torch.device("cuda"):
        mixture: nn.Module = MixtureOfExperts(config)
        if rank:
            mixture = add_lora(mixture, LoraConfig(rank=rank, layers=("experts.*",)))
        x = torch.randn(1, tokens, config.dim, requires_grad=True)
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        with torch.autocast("cuda", torch.bfloat16):
            output = mixture(x)
        output.float().square().sum().backward()
    names: Any = {event.name for event in profile.events()}
    gradients = {name: value.grad for name, value in mixture.named_parameters() if value.grad is not None}
    assert len(gradients) == (6 if rank else 4)
    return {"output": output.detach(), "x": x.grad, **gradients}, "aten::_grouped_mm" in names
