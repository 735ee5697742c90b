"""The head in fp8 (`fp8.head`): loss and gradients, the models that can use it, and runs with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from tests.trainer.curves import config_of, curve, global_batch, make_step
from tests.trainer.ranks import on_ranks
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.models.cross_entropy import sum_cross_entropy
from trainer.models.fp8_head import differentiate_head_fp8
from trainer.models.functional import IGNORED_TARGET
from trainer.models.head import Head

TINY = ["precision=bf16", "model.seq_len=16", "model.layers=2", "batch.size=8", "batch.micro=4"]
SINGLE, TENSOR, HEAD = "parallel.strategy=single", "fp8.scaling=tensor", "fp8.head=true"
DIM, VOCABULARY = 32, 48
LOSS_ERROR, GRADIENT_ERROR = 0.01, 0.08


@pytest.mark.parametrize("chunk_tokens", [0, 16, 7])
@pytest.mark.parametrize("shape", [(2, 16), (3, 7)])
def test_loss_and_gradients_are_close_to_exact_ones(shape: tuple[int, int], chunk_tokens: int) -> None:
    head, hidden, targets = make_operands(shape)
    targets[0, 3] = IGNORED_TARGET
    exact, *of_exact = differentiate(head, hidden, targets)
    head.uses_fp8 = True
    with torch.autocast("cpu", torch.bfloat16):
        losses: list[torch.Tensor] = []
        total = sum_cross_entropy(hidden, head, targets, chunk_tokens, record=losses.append)
        gradients = torch.autograd.grad(total, (hidden, head.weight))
    assert total.item() != exact.item()
    assert total.item() == pytest.approx(exact.item(), rel=LOSS_ERROR)
    assert float(losses[0].sum()) == pytest.approx(total.item())
    assert float(losses[0][0, 3]) == 0.0
    for actual, expected in zip(gradients, of_exact, strict=True):
        assert actual.dtype == expected.dtype
        assert float((actual - expected).norm() / expected.norm()) < GRADIENT_ERROR
    assert not gradients[0][0, 3].any()


def test_chunks_change_neither_losses_nor_gradients() -> None:
    torch.manual_seed(1)
    states, columns, targets = (
        torch.randn(40, DIM).bfloat16(),
        torch.randn(VOCABULARY, DIM).bfloat16(),
        torch.arange(40),
    )
    # Every chunk has the same largest value, hence the same scale.
    states[::8, 0] = 9.0
    whole, chunks = (differentiate_head_fp8(states, columns, targets, rows, True, True, True) for rows in (40, 16))
    assert torch.allclose(whole[0], chunks[0], rtol=0.01)
    # The last bit of a product depends on the number of rows, and may move a slope over a boundary of fp8.
    for once, by_chunk in zip(whole[1:], chunks[1:], strict=True):
        assert float((once - by_chunk).float().norm() / once.float().norm()) < 0.01


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_gradients_do_not_depend_on_when_they_are_computed(keeps_gradients: bool) -> None:
    head, hidden, targets = make_operands((2, 16))
    head.uses_fp8 = True
    with torch.autocast("cpu", torch.bfloat16):
        total = sum_cross_entropy(hidden, head, targets, keeps_gradients=keeps_gradients)
    flat = hidden.detach().flatten(0, 1).bfloat16()
    losses, of_states, _ = differentiate_head_fp8(
        flat, head.weight.detach().bfloat16(), targets.flatten(), 32, True, True, True
    )
    assert total.item() == pytest.approx(float(losses.sum()))
    (actual,) = torch.autograd.grad(total, hidden)
    assert torch.equal(actual.flatten(0, 1), of_states.float())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_or_an_infinity_is_not_hidden(bad: float) -> None:
    for operand in range(2):
        operands = [torch.ones(16, 16).bfloat16() for _ in range(2)]
        operands[operand][3, 4] = bad
        losses, *gradients = differentiate_head_fp8(*operands, torch.arange(16), 16, True, True, True)
        assert not losses.isfinite().any()
        assert not any(gradient.isfinite().any() for gradient in gradients)


def test_a_target_outside_of_the_vocabulary_is_refused() -> None:
    head, hidden, targets = make_operands((2, 16))
    head.uses_fp8 = True
    targets[1, 2] = VOCABULARY
    with pytest.raises(ConfigError, match="48 is not a token of the model"):
        sum_cross_entropy(hidden, head, targets)


def test_the_compiler_knows_the_shapes_of_its_results() -> None:
    states, columns = torch.randn(20, DIM).bfloat16(), torch.randn(VOCABULARY, DIM).bfloat16()
    for needs in ((True, True), (True, False), (False, True), (False, False)):
        arguments = (states, columns, torch.arange(20), 16, *needs, True)
        # Under no_grad the operation needs no formula of its own for gradients; _SumCrossEntropy has it.
        torch.library.opcheck(differentiate_head_fp8, arguments, test_utils=("test_schema", "test_faketensor"))


def test_an_evaluation_computes_in_bf16() -> None:
    head, hidden, targets = make_operands((2, 16))
    with torch.autocast("cpu", torch.bfloat16):
        plain = sum_cross_entropy(hidden, head, targets).item()
        head.uses_fp8 = True
        assert sum_cross_entropy(hidden, head, targets).item() != plain
        head.eval()
        assert sum_cross_entropy(hidden, head, targets).item() == plain


@pytest.mark.nightly_cases("tiny-moe-delayed", "tiny-moe-tensor", "tiny-llama-delayed")
@pytest.mark.parametrize("scaling", ["tensor", "delayed"])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-moe"])
def test_a_run_follows_one_with_a_head_in_bf16(preset: str, scaling: str) -> None:
    in_bf16, in_fp8 = (
        curve(config_of(preset, [*TINY, SINGLE, f"fp8.scaling={scaling}", head]), 4)
        for head in ("fp8.head=false", HEAD)
    )
    assert in_fp8["loss"] != in_bf16["loss"]
    assert in_fp8["loss"] == pytest.approx(in_bf16["loss"], abs=0.03)
    assert in_fp8["norm"] == pytest.approx(in_bf16["norm"], rel=0.1)
    assert not any(in_fp8["skipped"])


@pytest.mark.nightly_cases("strategy=fsdp recompute=full", "strategy=single pipeline=2")
@pytest.mark.parametrize("settings", ["strategy=ddp", "strategy=fsdp recompute=full", "strategy=single pipeline=2"])
def test_ranks_train_alike(settings: str) -> None:
    alone = curve(config_of("tiny-llama", [*TINY, SINGLE, TENSOR, HEAD]), 4)
    parallel = [f"parallel.{setting}" for setting in settings.split()]
    config = config_of("tiny-llama", [*TINY, TENSOR, HEAD, *parallel])
    for together in on_ranks("tests.trainer.curves:curve", ranks=2, config=config, micro=2):
        assert together["loss"] == pytest.approx(alone["loss"], abs=0.02)


# Compiling takes a time for each layer, and only the head is new here.
@pytest.mark.nightly
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_compiled_run_has_no_graph_break(layers: int) -> None:
    settings = [*TINY, SINGLE, TENSOR, HEAD, "compile.backend=aot_eager", f"model.layers={layers}"]
    torch.compiler.reset()
    counters.clear()
    losses = []
    for mode in ("whole", "none"):
        step = make_step(load("tiny-llama", [*settings, f"compile.mode={mode}"]))
        losses.append([float(step.run(global_batch(step._config, index), 4).loss) for index in range(3)])
    assert not counters["graph_break"]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)


@pytest.mark.parametrize(
    ("preset", "settings", "message"),
    [
        (
            "tiny-llama",
            [HEAD],
            "fp8.head: true, but fp8.scaling is none; set it to false, or fp8.scaling to tensor, row or delayed",
        ),
        ("tiny-llama", [TENSOR, "fp8.head=bf16"], "fp8.head: 'bf16'"),
        ("tiny-llama", [TENSOR, HEAD, "parallel.tensor=2"], "fp8.scaling: tensor, but parallel.tensor=2"),
        (
            "tiny-llama",
            [TENSOR, HEAD, "model.vocab_size=250"],
            "fp8.head: true, but model.vocab_size is 250, and fp8 products need multiples of 16; "
            "set it to false, or model.vocab_size to 256",
        ),
        ("tiny-mlp", [TENSOR, HEAD], "fp8.head: true, but only the head of a language model computes in fp8"),
    ],
)
def test_settings_that_the_head_cannot_serve_are_refused(preset: str, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(preset, ["precision=bf16", *settings])
    assert message in str(caught.value)


def test_a_vocabulary_of_an_own_model_that_does_not_fit_is_refused() -> None:
    config = load("tiny-llama", [*TINY, SINGLE, TENSOR, HEAD])
    config = replace(config, model=replace(config.model, vocab_size=250))
    message = r"fp8\.head: true, but the model's vocabulary is 250, .* multiples of 16; set it to false, or pad .* 256"
    with pytest.raises(ConfigError, match=message):
        make_step(config)


def test_an_own_model_without_a_language_head_is_refused() -> None:
    config = load("tiny-mlp", ["precision=bf16", SINGLE, TENSOR])
    config = replace(config, fp8=replace(config.fp8, head=True))
    with pytest.raises(ConfigError, match=r"fp8\.head: true, but the head of Mlp does not compute the objective"):
        make_step(config)


def make_operands(shape: tuple[int, int]) -> tuple[Head, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return Head(DIM, VOCABULARY), torch.randn(*shape, DIM, requires_grad=True), torch.randint(VOCABULARY, shape)


def differentiate(head: Head, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = hidden @ head.weight.t()
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )
    return total, *torch.autograd.grad(total, (hidden, head.weight))
