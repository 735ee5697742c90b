"""The objective inside the model: the loss and the gradients of whole logits, without whole logits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.logit_counter import LogitCounter
from tests.trainer.ranks import on_ranks
from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.models import Gpt2Config, LlamaConfig
from trainer.config.schema import LoraConfig, ParallelConfig
from trainer.evaluation.figures import CrossEntropySums
from trainer.evaluation.text_sampler import NextTokens
from trainer.models.cross_entropy import sum_cross_entropy
from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.models.head import Head
from trainer.models.init import fill
from trainer.models.lora import add_lora
from trainer.models.registry import build_model
from trainer.objective import CrossEntropy
from trainer.world import World

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


def test_the_factor_of_the_mean_is_not_rounded_to_bf16() -> None:
    """As under fully_shard, which casts weights and hidden states: 1 / 3 in bf16 would be 0.2 % off."""
    generator = torch.Generator().manual_seed(1)
    head, states = Head(64, 9000).to(torch.bfloat16), torch.randn(3, 64, generator=generator).to(torch.bfloat16)
    states.requires_grad_()
    targets = torch.tensor([1, 8999, 5])
    head(states, objective=CrossEntropy().from_hidden, targets=targets).backward()
    total = head(states, objective=sum_cross_entropy, targets=targets)
    for value, sums in zip((head.weight, states), torch.autograd.grad(total, (head.weight, states)), strict=True):
        assert value.grad is not None
        ratio = value.grad.double().abs().sum() / sums.double().abs().sum()
        assert ratio.item() == pytest.approx(1 / 3, rel=5e-4)


@pytest.mark.parametrize("chunk_tokens", [0, 24])
def test_fp16_keeps_the_gradients_of_unlikely_tokens(chunk_tokens: int) -> None:
    generator = torch.Generator().manual_seed(1)
    head, states = Head(8, 100_000), torch.randn(64, 8, generator=generator)
    nn.init.normal_(head.weight, std=2.0, generator=generator)
    states.requires_grad_()
    targets = torch.randint(100_000, (64,), generator=generator)
    exact = compute_loss(head(states), targets)
    expected = torch.autograd.grad(exact, (head.weight, states))
    # Rows whose probability is too small for fp16 without a factor.
    highest = head(states).softmax(-1).amax(0)
    highest[targets] = 1
    unlikely = (highest < 2e-7) & (highest > 2e-9)
    assert unlikely.sum() > 100
    with torch.autocast("cpu", torch.float16):
        loss = head(states, objective=CrossEntropy(chunk_tokens).from_hidden, targets=targets)
    gradients = torch.autograd.grad(loss, (head.weight, states))
    assert loss.item() == pytest.approx(exact.item(), rel=1e-3)
    pairs = [(gradients[0][unlikely], expected[0][unlikely]), *zip(gradients, expected, strict=True)]
    for gradient, reference in pairs:
        assert (gradient - reference).norm() < 3e-2 * reference.norm()


def test_sums_of_many_chunks_do_not_overflow_weights_in_fp16() -> None:
    """As under fsdp, where the gathered weight is fp16 itself; the sum over all tokens is beyond its range."""
    head = Head(8, 5).half()
    nn.init.zeros_(head.weight)
    states = torch.full((160_000, 8), 20.0, dtype=torch.float16)
    targets = torch.zeros(len(states), dtype=torch.int64)
    (loss := head(states, objective=CrossEntropy(20_000).from_hidden, targets=targets)).backward()
    assert torch.isfinite(loss)
    assert head.weight.grad is not None
    assert head.weight.grad[:, 0].tolist() == pytest.approx([-16, 4, 4, 4, 4], rel=1e-2)


@pytest.mark.parametrize("value", [-1, VOCABULARY, -101])
def test_targets_outside_of_the_vocabulary_are_an_error(value: int) -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    targets[1, 3] = value
    for objective in (CrossEntropy(8), CrossEntropySums(8)):
        with pytest.raises(ConfigError) as caught:
            model(inputs, objective=objective.from_hidden, targets=targets)
        assert str(caught.value).startswith(f"targets: {value} is not a token of the model (0 to 60); use -100 for")


def test_targets_outside_of_the_vocabulary_are_nan_where_nothing_may_wait() -> None:
    """Compiled graphs and GPUs cannot read a value; then the update is skipped and reported."""
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    targets[1, 3] = -1
    torch.compiler.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    loss = run(inputs, objective=CrossEntropy(20).from_hidden, targets=targets)
    loss.backward()
    assert loss.isnan()
    assert model.head.weight.grad.isnan().any()
    assert model.norm.weight.grad.isnan().any()


def test_gradients_can_be_computed_in_the_backward_pass() -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    losses = [
        model(inputs, objective=CrossEntropy(7, keeps_gradients).from_hidden, targets=targets)
        for keeps_gradients in (True, False)
    ]
    expected, gradients = (collect_gradients(model, loss) for loss in losses)
    assert losses[0].item() == losses[1].item()
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_gradients_for_later_need_no_memory_until_then() -> None:
    """Under gpipe all micro-batches are at the loss at once."""
    head, states = Head(8, 1000), torch.randn(4, 8, requires_grad=True)
    for keeps_gradients, values in ((True, 8 * 1000), (False, 4 * 8)):
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(make_recorder(saved), lambda value: value):
            head(states, objective=CrossEntropy(0, keeps_gradients).from_hidden, targets=torch.arange(4))
        assert max(value.numel() for value in saved if value is not head.weight) == values


def test_no_more_logits_exist_than_a_chunk() -> None:
    model = make_model(LLAMA)
    inputs, targets = make_batch()
    for chunk_tokens, rows in ((4, 4), (0, 32)):
        with LogitCounter(VOCABULARY) as counter:
            model(inputs, objective=CrossEntropy(chunk_tokens).from_hidden, targets=targets).backward()
        assert (counter.rows, counter.columns) == (rows, VOCABULARY)
        # Logits and the logarithms of their probabilities; the chunk before is gone.
        assert counter.values_at_once == 2 * rows * VOCABULARY


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


@pytest.mark.parametrize("keeps_gradients", [True, False])
@pytest.mark.parametrize("chunk_tokens", [0, 7])
def test_lora_on_the_head_is_part_of_a_chunked_loss(chunk_tokens: int, keeps_gradients: bool) -> None:
    model = make_model_with_lora()
    inputs, targets = make_batch()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    expected = compute_loss(model(inputs), targets)
    objective = CrossEntropy(chunk_tokens, keeps_gradients)
    with LogitCounter(VOCABULARY) as counter:
        loss = model(inputs, objective=objective.from_hidden, targets=targets)
        gradients = torch.autograd.grad(loss, list(trained.values()))
    assert counter.rows == (chunk_tokens or 32)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, gradient, reference in zip(
        trained, gradients, torch.autograd.grad(expected, list(trained.values())), strict=True
    ):
        assert torch.allclose(gradient, reference, rtol=1e-4, atol=1e-7), name
        assert reference.any(), name
    # The change matters: with the frozen weight alone, the loss would be another.
    plain = compute_loss(nn.functional.linear(collect_hidden(model, inputs), model.head.weight), targets)
    assert abs(plain.item() - expected.item()) > 1e-2


def test_lora_on_the_head_is_evaluated_and_samples_text() -> None:
    model = make_model_with_lora()
    inputs, targets = make_batch()
    logits = model(inputs)
    targets[0, :5] = logits[0, :5].argmax(-1)
    for measure in (CrossEntropySums(7), NextTokens()):
        figures = model(inputs, objective=measure.from_hidden, targets=targets)
        counted = targets if isinstance(measure, CrossEntropySums) else ignore_after_first(targets)
        assert figures.tolist() == pytest.approx(measure(logits, counted).tolist(), rel=1e-6)


def make_model_with_lora() -> Any:
    """Return a model with LoRA on its head and before it, whose change is not zero."""
    model = add_lora(make_model(LLAMA), LoraConfig(rank=3, layers=("attention.q", "head")))
    for name, value in model.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(value, std=0.1, generator=torch.Generator().manual_seed(2))
    return model


def collect_hidden(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the hidden states before the head."""
    states: list[torch.Tensor] = []

    def objective(hidden: torch.Tensor, _head: Head, _targets: torch.Tensor) -> torch.Tensor:
        states.append(hidden)
        return hidden.sum()

    model(inputs, objective=objective, targets=inputs)
    return states[0]


def ignore_after_first(targets: torch.Tensor) -> torch.Tensor:
    """Ignore all targets but the first of each row."""
    return torch.where(torch.arange(targets.shape[1]) == 0, targets, IGNORED_TARGET)


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


def test_every_stage_of_a_pipeline_accepts_an_objective_on_hidden_states() -> None:
    (first, _), (second, _) = train_pipeline("1f1b", own_loss=True)
    assert first == second == pytest.approx([4.3, 4.3], abs=0.3)


def test_gpipe_keeps_no_gradient_of_the_head_for_each_micro_batch() -> None:
    (_, (losses, count)), (_, (gpipe_losses, gpipe_count)) = (train_pipeline(name) for name in ("1f1b", "gpipe"))
    assert gpipe_losses == losses
    assert (count, gpipe_count) == (4, 0)


def train_pipeline(schedule: str, **options: bool) -> list[Any]:
    return on_ranks("tests.trainer.test_objective:train_stage", ranks=2, schedule=schedule, **options)


def train_stage(schedule: Any, *, own_loss: bool = False) -> tuple[list[float], int]:
    """Train one of two stages for two steps; return the losses and how many gradients of the head were kept."""
    rank, saved = dist.get_rank(), list[torch.Tensor]()
    world = World(rank, 2, rank, 2, "here", torch.device("cpu"), (), dist.group.WORLD)
    parallel = ParallelConfig(strategy="single", pipeline=2, schedule=schedule)
    with tempfile.TemporaryDirectory() as folder, patch("trainer.api.start", return_value=world):
        trainer = Trainer(
            make_model(replace(LLAMA, layers=2)),
            loss=cast(Any, PenalizedLogits() if own_loss else compute_loss),
            strategy=parallel,
            folder=folder,
            micro_batch=1,
        )
        weights = {value.data_ptr() for _, value in trainer.engine.named_parameters()}
        with torch.autograd.graph.saved_tensors_hooks(make_recorder(saved), lambda value: value):
            losses = train(trainer)
        trainer.checkpoints.close()
    shape = (VOCABULARY, LLAMA.dim)
    return losses, sum(value.shape == shape and value.data_ptr() not in weights for value in saved)


class PenalizedLogits:
    """A loss that exists on hidden states only."""

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        return penalize_logits(head.compute_logits(hidden), targets)


def penalize_logits(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return compute_loss(logits, targets) + 1e-2 * logits.logsumexp(-1).square().mean()


def make_recorder(saved: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a hook that records the tensors which are kept for the backward pass."""

    def record(value: torch.Tensor) -> torch.Tensor:
        saved.append(value)
        return value

    return record


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
