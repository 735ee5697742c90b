"""Documents that do not see each other: a packed sample trains like its documents one by one, under every strategy."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tests.trainer.curves import config_of, global_batch, make_step, number_documents
from tests.trainer.ranks import on_ranks
from trainer.config.load import from_dict
from trainer.config.models import Gpt2Config, LlamaConfig, MistralConfig, Qwen3Config
from trainer.models.attention_mask import make_mask
from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.models.init import fill
from trainer.models.registry import build_model

SIZES: dict[str, Any] = {"vocab_size": 61, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "seq_len": 16}
DECODERS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, window=3),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "gpt2": Gpt2Config(vocab_size=61, dim=32, layers=2, heads=4, seq_len=16),
}
every_decoder = pytest.mark.parametrize("config", DECODERS.values(), ids=DECODERS)
# The documents of two samples.
LENGTHS = ((5, 1, 7, 3), (9, 7))

LLAMA = (
    "model.dim=32",
    "model.ffn=48",
    "model.heads=4",
    "model.kv_heads=4",
    "model.vocab_size=64",
    "batch.size=8",
    "optimizer.clip_norm=0.3",
)
STRATEGIES = [
    "ddp",
    "fsdp recompute=full",
    "ddp pipeline=2 schedule=interleaved",
    "single tensor=2 pipeline=2",
    "fsdp tensor=2",
]


@every_decoder
def test_a_packed_sample_gives_the_loss_and_gradients_of_its_documents_one_by_one(config: Any) -> None:
    model = make_model(config)
    tokens = torch.randint(0, 61, (2, 17), generator=torch.Generator().manual_seed(3))
    inputs, targets, documents = tokens[:, :-1], tokens[:, 1:].clone(), torch.zeros(2, 16, dtype=torch.int32)
    pieces = []
    for sample, lengths in enumerate(LENGTHS):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            documents[sample, end - length : end] = number
            targets[sample, end - 1] = IGNORED_TARGET
            piece = slice(end - length, end)
            pieces.append((inputs[sample : sample + 1, piece], targets[sample : sample + 1, piece]))
    packed = compute_loss(model(inputs, documents=documents), targets)
    expected = collect_gradients(model, packed)
    counts = [(piece != IGNORED_TARGET).sum() for _, piece in pieces]
    alone = sum(compute_loss(model(x), y) * count for (x, y), count in zip(pieces, counts, strict=True)) / sum(counts)
    assert alone.item() == pytest.approx(packed.item(), rel=1e-6)
    for name, gradient in collect_gradients(model, alone).items():
        assert torch.allclose(gradient, expected[name], atol=1e-6), name


@every_decoder
def test_one_document_is_the_same_as_none(config: Any) -> None:
    model = make_model(config)
    tokens = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(3))
    outputs = model(tokens, documents=torch.zeros_like(tokens, dtype=torch.int32))
    assert torch.allclose(outputs, model(tokens), atol=1e-6)


def test_positions_start_again_in_each_document() -> None:
    mask = make_mask(torch.tensor([[0, 0, 0, 1, 2, 2], [0, 1, 1, 1, 1, 1]], dtype=torch.int32))
    assert mask is not None
    assert mask.positions.tolist() == [[0, 1, 2, 0, 0, 1], [0, 0, 1, 2, 3, 4]]


def test_the_angles_of_positions_are_looked_up_once_for_all_layers() -> None:
    config = DECODERS["llama"]
    model, stored = make_model(config), set[int]()
    tokens = torch.randint(0, 61, (2, 16))
    shape = (2, 1, 16, config.head_width // 2)

    def store(value: torch.Tensor) -> torch.Tensor:
        stored.update([value.data_ptr()] if value.shape == shape else [])
        return value

    with torch.autograd.graph.saved_tensors_hooks(store, lambda value: value):
        outputs = model(tokens, documents=(torch.arange(16) // 5).expand(2, -1))
    # Cosine and sine; the outputs keep them in memory until here.
    assert len(stored) == 2
    assert outputs.requires_grad


def test_sharded_layers_in_bf16_get_angles_in_fp32() -> None:
    config = config_of("tiny-llama", [*LLAMA, "precision=bf16", "parallel.strategy=fsdp"])
    assert on_ranks(f"{__name__}:list_angle_types", ranks=1, config=config) == [["torch.float32"] * 4]


def list_angle_types(config: dict[str, Any]) -> list[str]:
    """Return the type of the angles that each layer gets in a step with documents."""
    settings: Any = from_dict(config)
    step, types = make_step(settings), list[str]()

    def record(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        types.append(str(kwargs["angles"].cos.dtype))

    for block in step.engine.modules[0].layers.values():
        block.attention.register_forward_pre_hook(record, with_kwargs=True)
    batch = global_batch(settings, 1)
    step.run({**batch, "documents": number_documents(batch["inputs"], 1)}, settings.batch.size)
    return types


@pytest.mark.parametrize("config", [DECODERS["llama"], DECODERS["gpt2"]], ids=["llama", "gpt2"])
def test_a_model_with_documents_compiles_as_one_graph(config: Any) -> None:
    model = make_model(replace(config, layers=1))
    tokens = torch.randint(0, 61, (2, 16))
    documents = (torch.arange(16) // 5).expand(2, -1).to(torch.int32)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(tokens, documents=documents), model(tokens, documents=documents))


@pytest.mark.nightly_cases("2-single tensor=2 pipeline=2")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("steps", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_every_strategy_separates_documents(strategy: str, steps: int) -> None:
    expected = train_alone(steps)
    config = config_of("tiny-llama", [*LLAMA, *settings(strategy)])
    # Sums in another order round differently, which accumulates over the steps.
    tolerance = 1e-5 if steps == 2 else 1e-3
    for curves in on_ranks("tests.trainer.curves:curve", config=config, micro=2, steps=steps, has_documents=True):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=tolerance)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=10 * tolerance)


def test_documents_change_the_losses_of_a_run() -> None:
    """Otherwise the comparison of the strategies would show nothing."""
    config = config_of("tiny-llama", [*LLAMA, "parallel.strategy=single"])
    joined = on_ranks("tests.trainer.curves:curve", ranks=1, config=config, micro=2, steps=2)[0]
    assert joined["norm"] != pytest.approx(train_alone(2)["norm"], rel=1e-3)


@cache
def train_alone(steps: int) -> dict[str, list[float]]:
    config = config_of("tiny-llama", [*LLAMA, "parallel.strategy=single"])
    target = "tests.trainer.curves:curve"
    return on_ranks(target, ranks=1, config=config, micro=2, steps=steps, has_documents=True)[0]


def settings(strategy: str) -> list[str]:
    name, *options = strategy.split()
    return [f"parallel.strategy={name}", *(f"parallel.{option}" for option in options)]


def make_model(config: Any) -> Any:
    model = build_model(config)
    fill([model], 1)
    return model


def collect_gradients(model: Any, loss: Any) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
