"""Context parallelism: ranks that split each sequence train like a single rank."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.curves import config_of
from tests.trainer.ranks import RANKS, on_ranks
from tests.trainer.strategies import LOSS_TOLERANCE, NORM_TOLERANCE, settings
from trainer.config.errors import ConfigError
from trainer.config.layout import Layout
from trainer.config.schema import ParallelConfig
from trainer.models.attention import attend
from trainer.models.sequence_part import SequencePart
from trainer.parallel.apply import parallelize
from trainer.parallel.context import take_part
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh

NIGHTLY = pytest.mark.nightly
STEPS = 20
CURVE = "tests.trainer.curves:curve"

# A sample has 16 tokens; grouped heads, because keys and values of all ranks are gathered before heads are shared.
LLAMA = (
    "model.dim=32",
    "model.layers=2",
    "model.ffn=48",
    "model.heads=4",
    "model.kv_heads=2",
    "model.vocab_size=64",
    "batch.size=8",
    "optimizer.clip_norm=0.3",
)
GPT2 = ("model.dim=32", "model.layers=2", "model.vocab_size=64", "batch.size=8", "optimizer.clip_norm=0.3")
MODELS = {
    "llama": ("tiny-llama", LLAMA),
    "mistral": ("tiny-llama", (*LLAMA, "model.family=mistral", "model.window=5")),
    "qwen3": ("tiny-llama", (*LLAMA, "model.family=qwen3", "model.head_dim=12")),
    "gpt2": ("tiny-gpt2", GPT2),
    # Balanced by biases: a balance loss is that of a rank's own tokens, which are fewer here.
    "mixtral": ("tiny-moe", (*GPT2, "model.ffn=16", "model.balance=bias", "model.balance_rate=0.01")),
}
DENSE_MODELS = [name for name in MODELS if name != "mixtral"]
STRATEGIES = {
    "context, sliding window": ("mistral", "single context=4"),
    "context with ddp, learned positions": ("gpt2", "ddp context=2"),
    "context with fsdp": ("llama", "fsdp context=2 recompute=selective"),
    "context with hsdp": ("llama", "hsdp shard=2 context=2 zero=2"),
    "context with tensor": ("qwen3", "single context=2 tensor=2"),
    "context with pipeline": ("llama", "single context=2 pipeline=2"),
}
DAILY = ("context, sliding window", "context with fsdp", "context with pipeline")
# By number of ranks.
NIGHTLY_STRATEGIES = {
    2: ["single context=2", "fsdp context=2", "ddp context=2 recompute=full"],
    4: ["single context=4", "ddp context=2", "fsdp context=2", "hsdp shard=2 context=2", "fsdp context=2 tensor=2"],
    8: ["single context=8", "fsdp context=4", "hsdp shard=4 context=2", "fsdp context=2 tensor=2"],
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_parts_cover_the_sequence_and_give_every_rank_the_same_work(ranks: int) -> None:
    whole = torch.arange(ranks * 6)
    parts = [SequencePart(rank, ranks).take(whole, dim=0) for rank in range(ranks)]
    assert sorted(torch.cat(parts).tolist()) == whole.tolist()
    # A token attends to as many tokens as its position says.
    assert len({int(part.sum()) for part in parts}) == 1
    for rank, part in enumerate(parts):
        assert SequencePart(rank, ranks).list_positions(len(part), whole.device).equal(part)


@pytest.mark.parametrize("window", [0, 1, 4, 7, 12, 40])
@pytest.mark.parametrize("start", [0, 3, 10])
def test_queries_at_the_end_attend_like_the_same_queries_among_all(start: int, window: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 13, 8, generator=generator) for heads in (4, 2, 2))
    expected = attend(q, k, v, window=window)[:, :, start:]
    assert torch.allclose(attend(q[:, :, start:], k, v, window=window), expected, atol=1e-6)


def test_gathered_parts_are_in_order_and_their_gradients_are_summed() -> None:
    for rank, (whole, gradient) in enumerate(on_ranks("tests.trainer.test_context_parallel:gather")):
        assert whole == list(range(16))
        # Rank r multiplies the token at position p by (r + 1) p, and the factors of all ranks are added.
        assert gradient == [10 * p for p in SequencePart(rank, RANKS).take(torch.arange(16), 0).tolist()]


@pytest.mark.parametrize(
    ("model", "strategy"),
    [pytest.param(*case, id=name, marks=() if name in DAILY else NIGHTLY) for name, case in STRATEGIES.items()],
)
def test_ranks_that_split_sequences_train_like_one_rank(model: str, strategy: str) -> None:
    compare(model, strategy, steps=2)


@NIGHTLY
@pytest.mark.parametrize("model", DENSE_MODELS)
@pytest.mark.parametrize(("ranks", "strategy"), [(n, s) for n, names in NIGHTLY_STRATEGIES.items() for s in names])
def test_ranks_that_split_sequences_train_like_one_rank_for_20_steps(model: str, ranks: int, strategy: str) -> None:
    compare(model, strategy, ranks=ranks, steps=STEPS)


@NIGHTLY
@pytest.mark.parametrize("strategy", ["fsdp context=2", "ddp context=2 expert=4", "fsdp context=2 expert=2"])
def test_mixtures_of_experts_route_the_tokens_of_a_part(strategy: str) -> None:
    compare("mixtral", strategy, steps=4)


@pytest.mark.parametrize("strategy", ["single context=4", pytest.param("fsdp context=2 tensor=2", marks=NIGHTLY)])
@pytest.mark.parametrize("model", ["llama", pytest.param("mistral", marks=NIGHTLY)])
def test_documents_that_span_ranks_stay_separate(model: str, strategy: str) -> None:
    compare(model, strategy, steps=2, has_documents=True)


def test_targets_of_all_ranks_are_counted() -> None:
    """Ranks hold different numbers of targets, since those at the ends of samples are ignored."""
    compare("llama", "fsdp context=2", steps=2, count_targets=True, ignore_some=True)


@NIGHTLY
@pytest.mark.parametrize("strategy", ["ddp context=4", "fsdp context=2 tensor=2"])
def test_compiled_blocks_gather_keys_too(strategy: str) -> None:
    compare("llama", strategy, "compile.mode=blocks", "compile.backend=aot_eager", steps=2)


def test_a_sequence_that_cannot_be_cut_is_rejected() -> None:
    mesh = make_mesh(Layout(context=2))
    with pytest.raises(ConfigError) as error:
        take_part({"inputs": torch.zeros(1, 10)}, mesh)
    message = "data.seq_len: 10 tokens per sample are not divisible by 2 x parallel.context 2 = 4; use 8 or 12 tokens"
    assert str(error.value) == message
    with pytest.raises(ConfigError, match=r"20 tokens per sample are not divisible by context 2 x tensor 4 = 8; use"):
        take_part({"inputs": torch.zeros(1, 20)}, make_mesh(Layout(context=2, tensor=4)))


def test_a_model_that_cannot_attend_across_ranks_is_rejected() -> None:
    recipe = Recipe(ParallelConfig(strategy="single", context=2))
    with pytest.raises(ConfigError, match=r"parallel.context: 2, but Linear does not know how to .*such as Llama"):
        parallelize(nn.Linear(1, 1), recipe, make_mesh(Layout(context=2)))


def compare(model: str, strategy: str, *more: str, ranks: int = RANKS, steps: int, **options: Any) -> None:
    loss, norm = compare_with_single(model, strategy, *more, ranks=ranks, steps=steps, **options)
    assert loss <= LOSS_TOLERANCE
    assert norm <= NORM_TOLERANCE


def compare_with_single(
    model: str, strategy: str, *more: str, ranks: int, steps: int, **options: Any
) -> tuple[float, float]:
    """Return the largest difference of a loss, and of a gradient norm relative to it, over all ranks and steps."""
    preset, base = MODELS[model]
    expected = train_alone(model, steps, **options)
    config = config_of(preset, [*base, *settings(strategy), *more])
    losses, norms = [], []
    for curves in on_ranks(CURVE, ranks=ranks, config=config, micro=2, steps=steps, **options):
        losses += [abs(a - b) for a, b in zip(curves["loss"], expected["loss"], strict=True)]
        norms += [abs(a - b) / b for a, b in zip(curves["norm"], expected["norm"], strict=True)]
    assert all(math.isfinite(value) for value in [*losses, *norms])
    return max(losses), max(norms)


@cache
def train_alone(model: str, steps: int, **options: Any) -> dict[str, list[float]]:
    preset, base = MODELS[model]
    config = config_of(preset, [*base, "parallel.strategy=single"])
    return on_ranks(CURVE, ranks=1, config=config, micro=2, steps=steps, **options)[0]


def gather() -> tuple[list[int], list[int]]:
    """Gather positions along the second dimension; return them and the gradient of this rank's part."""
    rank = torch.distributed.get_rank()
    part = SequencePart(rank, RANKS, torch.distributed.group.WORLD)
    own = part.list_positions(4, torch.device("cpu")).float().requires_grad_()
    whole = part.gather(own[None], dim=1)[0]
    (whole * torch.arange(16) * (rank + 1)).sum().backward()
    assert own.grad is not None
    return whole.int().tolist(), own.grad.int().tolist()


def make_mesh(layout: Layout) -> Mesh:
    """Return a mesh that claims to have this layout, without other ranks."""
    mesh = Mesh(Layout(), 0, torch.device("cpu"), uses_fully_shard=False)
    mesh.layout = layout
    return mesh
