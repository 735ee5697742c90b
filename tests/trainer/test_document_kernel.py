"""The kernels that keep documents apart: which one is chosen, and that flex_attention skips only what no token sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

from tests.trainer.curves import make_step
from trainer.config.layout import Layout
from trainer.config.load import load
from trainer.config.models import DecoderConfig, Gpt2Config, LlamaConfig
from trainer.models import document_blocks
from trainer.models.attention import attend
from trainer.models.attention_mask import find_starts, make_mask, make_part_mask
from trainer.models.document_blocks import BLOCK_TOKENS, find_blocks
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.models.sequence_part import SequencePart
from trainer.parallel import document_kernel
from trainer.parallel.document_kernel import describe_document_kernel, explain_mask

GPU = torch.device("cuda", 0)
ALONE = Layout()
LLAMA = LlamaConfig(dim=64, heads=4, kv_heads=2)
SMALL = ["model.layers=2", "batch.size=2", "batch.micro=2", "parallel.strategy=single", "model.seq_len=16"]


def draw_documents(samples: int, length: int, mean_tokens: int, seed: int = 0) -> torch.Tensor:
    is_first = torch.rand(samples, length, generator=torch.Generator().manual_seed(seed)) * mean_tokens < 1
    is_first[:, 0] = False
    return is_first.cumsum(1).to(torch.int32)


@pytest.mark.parametrize("window", [0, 1, 127, 128, 129, 200, 300, 10**6])
@pytest.mark.parametrize(("length", "mean_tokens"), [(1, 5), (128, 30), (500, 1000), (640, 100), (641, 300)])
def test_blocks_are_skipped_only_if_no_token_sees_another(length: int, mean_tokens: int, window: int) -> None:
    documents = draw_documents(3, length, mean_tokens)
    mask = make_mask(documents, window)
    assert mask is not None
    assert mask.visible is not None
    count = -(-length // BLOCK_TOKENS)
    # Blocks of pairs of tokens; those beyond the end of a sample do not count.
    padding = count * BLOCK_TOKENS - length
    padded = torch.nn.functional.pad(mask.visible, (0, padding, 0, padding))
    blocks = padded.unflatten(-1, (count, BLOCK_TOKENS)).unflatten(-3, (count, BLOCK_TOKENS)).transpose(-2, -3)
    order = torch.arange(length)
    starts = find_starts(documents, order)
    seen, full = find_blocks(torch.maximum(starts, order - window + 1) if window else starts)
    assert torch.equal(seen, blocks.flatten(-2).any(-1))
    assert torch.equal(full, blocks.flatten(-2).all(-1))


@pytest.mark.parametrize(
    "renumber",
    [lambda numbers: torch.where(numbers < 4, numbers + 1, 0), lambda numbers: numbers % 2],
    ids=["0 is the padding at the end", "numbers repeat"],
)
def test_any_numbers_may_tell_documents_apart(renumber: Callable[[torch.Tensor], torch.Tensor]) -> None:
    documents = (torch.arange(600) // 120).expand(2, -1)
    assert documents.unique().tolist() == [0, 1, 2, 3, 4]
    part, tokens = SequencePart(1, 2), torch.zeros(2, 300)
    expected: tuple[Any, ...]
    masks: tuple[Any, ...]
    expected, masks = (
        (make_mask(numbers), make_mask(numbers, kernel="flex"), make_part_mask(part, tokens, numbers))
        for numbers in (documents, renumber(documents))
    )
    for mask, own in zip(masks, expected, strict=True):
        assert torch.equal(mask.positions, own.positions)
    assert torch.equal(masks[0].visible, expected[0].visible)
    assert torch.equal(masks[2].visible, expected[2].visible)
    assert torch.equal(masks[1].blocks.to_dense(), expected[1].blocks.to_dense())


@pytest.mark.parametrize("window", [0, 150])
def test_flex_attention_sees_what_the_mask_sees(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU flex_attention has no backward pass; tests/gpu has the test with gradients."""
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, backend="eager", dynamic=False)
    monkeypatch.setattr(document_blocks, "_flex_attention", compiled)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 400, 16, generator=generator) for heads in (4, 2, 2))
    counters.clear()
    for seed in range(3):
        documents = draw_documents(2, 400, 100, seed)
        by_flex, by_mask = (attend(q, k, v, mask=make_mask(documents, window, kernel)) for kernel in ("flex", "mask"))
        torch.testing.assert_close(by_flex, by_mask)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("config", [LLAMA, Gpt2Config(dim=64, heads=4)], ids=["llama", "gpt2"])
def test_a_model_with_flex_attention_compiles_as_one_graph(
    config: DecoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_flex = torch.compile(flex_attention, backend="eager", dynamic=False)
    monkeypatch.setattr(document_blocks, "_flex_attention", compiled_flex)
    monkeypatch.setattr(document_blocks, "KERNEL_OPTIONS", {config.dim // config.heads: {"bwd_BLOCK_M1": 64}})
    monkeypatch.setattr(document_blocks, "_MEASURED_BYTES", 4)
    model: Any = build_model(replace(config, layers=1, vocab_size=61, seq_len=200))
    fill([model], 1)
    tokens = torch.randint(0, 61, (2, 200), generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    counters.clear()
    for seed in range(2):
        documents = draw_documents(2, 200, 50, seed)
        model.document_kernel = "mask"
        with torch.no_grad():
            expected = model(tokens, documents=documents)
            model.document_kernel = "flex"
            torch.testing.assert_close(compiled(tokens, documents=documents), expected, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("config", "device", "reason"),
    [
        (LLAMA, GPU, ""),
        (LLAMA, torch.device("cpu"), "flex_attention does not train on a CPU"),
        (replace(LLAMA, heads=8), GPU, "flex_attention needs heads of 16 values or more, and the model's have 8"),
        (Gpt2Config(dim=64, heads=8), GPU, "flex_attention needs heads of 16 values or more, and the model's have 8"),
        (Gpt2Config(dim=64, heads=4, dropout=0.1), GPU, "flex_attention has no dropout (model.dropout)"),
        (Gpt2Config(dim=64, heads=4), GPU, ""),
    ],
)
def test_a_mask_is_used_where_flex_attention_does_not_work(
    config: DecoderConfig, device: torch.device, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpu(monkeypatch)
    assert explain_mask(config, device, ALONE) == reason


def test_parts_of_sequences_use_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpu(monkeypatch)
    split = Layout(context=2)
    reason = "flex_attention is not used for parts of sequences (parallel.context)"
    assert describe_document_kernel(LLAMA, GPU, split) == f"documents: separated by a mask; {reason}"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ({"capability": (7, 5)}, "flex_attention needs compute capability 8.0, and this GPU has 7.5"),
        ({"triton": None}, "flex_attention needs the package triton"),
        ({"obstacle": "torch.compile needs a C compiler"}, "torch.compile needs a C compiler"),
    ],
)
def test_a_machine_that_cannot_compile_it_uses_a_mask_and_says_so(
    missing: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpu(monkeypatch, **missing)
    assert describe_document_kernel(LLAMA, GPU, ALONE) == f"documents: separated by a mask; {reason}"


def set_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), triton: Any = "present", obstacle: str = ""
) -> None:
    """Pretend that this machine has a GPU, and what its software has."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(document_kernel, "find_spec", lambda _: triton)
    monkeypatch.setattr(document_kernel, "find_obstacle", lambda _: obstacle)


@pytest.mark.nightly_cases("whole-none")
@pytest.mark.parametrize(
    ("mode", "recompute"),
    [
        ("blocks", "none"),
        ("whole", "none"),
        ("blocks", "selective"),
        pytest.param("blocks", "full", marks=pytest.mark.nightly),
        ("none", "selective"),
        ("none", "full"),
    ],
)
def test_documents_train_alike_in_every_way_to_run_them_and_recompile_nothing(mode: str, recompute: str) -> None:
    expected, _ = train("none", "none")
    counters.clear()
    losses, graphs = train(mode, recompute)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert graphs[-1] == graphs[1]
    assert (graphs[-1] > 0) == (mode != "none")
    assert not counters["graph_break"]


def train(mode: str, recompute: str, steps: int = 4) -> tuple[list[float], list[int]]:
    """Return the losses of steps with different documents, and how many graphs were compiled until each."""
    compiled = [f"compile.mode={mode}", "compile.backend=eager", f"parallel.recompute={recompute}"]
    config = load("tiny-llama", [*SMALL, *compiled])
    step = make_step(config, count_targets=True)
    losses, graphs = [], []
    tokens = torch.randint(320, (2, 17), generator=torch.Generator().manual_seed(1))
    for index in range(steps):
        batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "documents": draw_documents(2, 16, 5, index)}
        losses.append(float(step.run(batch, 2).loss))
        graphs.append(counters["stats"]["unique_graphs"])
    return losses, graphs
