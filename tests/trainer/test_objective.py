"""The objective inside the model: the loss and the gradients of whole logits, without whole logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.logit_counter import LogitCounter
from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.models import Gpt2Config, LlamaConfig
from trainer.config.schema import LoraConfig
from trainer.evaluation.figures import CrossEntropySums
from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.models.head import Head
from trainer.models.init import fill
from trainer.models.lora import add_lora
from trainer.models.registry import build_model
from trainer.objective import CrossEntropy

VOCABULARY = 61
LLAMA = LlamaConfig(vocab_size=VOCABULARY, dim=32, layers=1, heads=4, kv_heads=2, ffn=48, seq_len=16)
GPT2 = Gpt2Config(vocab_size=VOCABULARY, dim=32, layers=1, heads=4, seq_len=16)
MODELS: dict[str, Any] = {"llama": LLAMA, "gpt2, tied": GPT2}


@pytest.mark.parametrize("chunk_tokens", [0, 1, 7, 32, 100])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_chunked_loss_equals_that_of_all_logits(config: Any, chunk_tokens: int) -> None:
    model = make_model(config)
    inputs, targets = make_batch()
    expected = compute_loss(model(inputs), targets)
    loss = model(inputs, objective=CrossEntropy(chunk_tokens).from_hidden, targets=targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = collect_gradients(model, expected)
    for name, gradient in collect_gradients(model, loss).items():
        assert torch.allclose(gradient, gradients[name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("chunk_tokens", [0, 7])
def test_evaluation_sums_equal_those_of_all_logits(chunk_tokens: int) -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    # Some correct predictions.
    targets[0, :5] = model(inputs)[0, :5].argmax(-1)
    measure = CrossEntropySums(chunk_tokens)
    sums = model(inputs, objective=measure.from_hidden, targets=targets)
    expected = measure(model(inputs), targets)
    assert sums.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert expected[2] >= 5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_low_precision_stays_close_to_fp32(dtype: torch.dtype, tolerance: float) -> None:
    """With fp16 the sum over many tokens of the same target must not overflow."""
    head, states = Head(8, 5), torch.randn(40_000, 8, generator=torch.Generator().manual_seed(1)) + 4
    nn.init.zeros_(head.weight)
    targets = torch.zeros(len(states), dtype=torch.int64)
    with torch.autocast("cpu", dtype):
        loss = head(states, objective=CrossEntropy(20_000).from_hidden, targets=targets)
    loss.backward()
    expected = torch.autograd.grad(compute_loss(head(states), targets), head.weight)[0]
    assert head.weight.grad is not None
    assert torch.allclose(head.weight.grad, expected, rtol=tolerance)


def test_no_more_logits_exist_than_a_chunk() -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    for chunk_tokens, rows in ((4, 4), (0, 32)):
        with LogitCounter(VOCABULARY) as counter:
            model(inputs, objective=CrossEntropy(chunk_tokens).from_hidden, targets=targets).backward()
        assert (counter.rows, counter.columns) == (rows, VOCABULARY)


def test_ignored_targets_count_nothing() -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    ignored = torch.full_like(targets, IGNORED_TARGET)
    loss = model(inputs, objective=CrossEntropy(8).from_hidden, targets=ignored)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in collect_gradients(model, loss).values())


def test_a_frozen_head_gets_no_gradient() -> None:
    model = make_model(LLAMA)
    model.head.requires_grad_(False)
    inputs, targets = make_batch()
    expected = torch.autograd.grad(compute_loss(model(inputs), targets), model.norm.weight)[0]
    model(inputs, objective=CrossEntropy(8).from_hidden, targets=targets).backward()
    assert model.head.weight.grad is None
    assert torch.allclose(model.norm.weight.grad, expected, atol=1e-7)


def test_a_second_backward_pass_is_an_error() -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    loss = model(inputs, objective=CrossEntropy(8).from_hidden, targets=targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_model_and_objective_compile_as_one_graph(config: Any) -> None:
    model, compiled = make_model(config), make_model(config)
    inputs, targets = make_batch()
    torch.compiler.reset()
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    objective = CrossEntropy(20).from_hidden
    for network in (model, run):
        network(inputs, objective=objective, targets=targets).backward()
    for name, value in model.named_parameters():
        assert torch.allclose(value.grad, compiled.get_parameter(name).grad, atol=1e-7), name


def test_lora_on_the_head_falls_back_to_all_logits(tmp_path: Path) -> None:
    model = add_lora(make_model(LLAMA), LoraConfig(rank=2, layers=("head",)))
    trainer = Trainer(model, folder=tmp_path / "run", steps=2)
    assert train(trainer) == pytest.approx([4.1, 4.1], abs=0.2)
    trainer.close()


def test_an_objective_of_the_user_gets_hidden_states_and_head(tmp_path: Path) -> None:
    plain = Trainer(make_model(LLAMA), loss=PenalizedLogits(), folder=tmp_path / "hidden", steps=2)
    whole = Trainer(make_model(LLAMA), loss=penalize_logits, folder=tmp_path / "outputs", steps=2)
    assert train(plain) == pytest.approx(train(whole), rel=1e-6)
    inputs, targets = make_batch()
    batch = {"inputs": inputs, "targets": targets}
    assert plain.evaluate([batch])["loss"] == pytest.approx(whole.evaluate([batch])["loss"], rel=1e-6)
    plain.close()
    whole.close()


def test_an_objective_on_hidden_states_needs_a_model_that_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss: .*Linear") as caught:
        Trainer(nn.Linear(3, 4), loss=PenalizedLogits(), folder=tmp_path / "run")
    assert "trainer.models.head.Head" in str(caught.value)


class PenalizedLogits:
    """A loss that exists on hidden states only."""

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        return penalize_logits(head.compute_logits(hidden), targets)


def penalize_logits(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return compute_loss(logits, targets) + 1e-2 * logits.logsumexp(-1).square().mean()


def train(trainer: Trainer) -> list[float]:
    inputs, targets = make_batch()
    return [float(trainer.train_step({"inputs": inputs, "targets": targets})) for _ in range(2)]


def make_model(config: Any) -> Any:
    model = build_model(config)
    fill([model], 1)
    return model


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(5))
    targets = tokens[:, 1:].clone()
    targets[1, 9:12] = IGNORED_TARGET
    return tokens[:, :-1], targets


def collect_gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
