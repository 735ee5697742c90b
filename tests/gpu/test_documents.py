"""Documents on the GPU: packed ones train like separate samples, by flex_attention, without recompilations."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import DEVICE
from trainer.config.layout import Layout
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.models.attention import attend
from trainer.models.attention_mask import AttentionMask, make_mask
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.parallel.document_kernel import describe_document_kernel

ALONE = Layout()
LENGTHS = (100, 28, 300, 1, 211)
TOKENS = sum(LENGTHS)
SMALL = (
    "model.dim=128", "model.heads=4", "model.ffn=256", "model.layers=2", f"model.seq_len={TOKENS}", "batch.size=2",
    "parallel.strategy=single",
)  # fmt: skip
MODELS = {
    "llama": ("tiny-llama", SMALL),
    "mistral": ("tiny-llama", (*SMALL, "model.family=mistral", "model.window=130")),
    "gpt2": ("tiny-gpt2", tuple(setting for setting in SMALL if "ffn" not in setting)),
}


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_packed_documents_train_like_each_alone(family: str, precision: str) -> None:
    preset, settings = MODELS[family]
    config = load(preset, [*settings, f"precision={precision}"])
    tokens, documents = make_packed(config)
    model = build(config, "flex")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.autocast("cuda", dtype, enabled=precision == "bf16"):
        packed = model(tokens, documents=documents)
        alone = torch.cat([model(part) for part in tokens.split(LENGTHS, dim=1)], dim=1)
    # Kernels for other lengths round differently.
    tolerance = {"rtol": 0.02, "atol": 0.03} if precision == "bf16" else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(packed, alone, **tolerance)
    packed_gradients, gradients = (compute_gradients(model, outputs) for outputs in (packed, alone))
    # The bias of keys adds the same number to all scores of a query, so its gradient is rounding errors around zero:
    # it is compared with the gradient of the queries' bias.
    sizes = {name: gradients[name.replace("k.bias", "q.bias")].norm() for name in gradients}
    for name, gradient in gradients.items():
        difference = (packed_gradients[name] - gradient).norm() / sizes[name]
        assert difference < (0.03 if precision == "bf16" else 1e-3), name


@pytest.mark.parametrize("window", [0, 1, 100, 128, 300])
@pytest.mark.parametrize("heads", [4, 2])
def test_flex_attention_sees_what_the_mask_sees(window: int, heads: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    q, k, v = (
        torch.randn(2, count, TOKENS, 32, device=DEVICE, generator=generator, requires_grad=True)
        for count in (4, heads, heads)
    )
    documents = number(LENGTHS)
    masks = [make_mask(documents, window, "flex"), make_mask(documents, window, "mask")]
    assert isinstance(masks[0], AttentionMask)
    assert masks[0].blocks is not None
    outputs = [attend(q, k, v, mask=mask) for mask in masks]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)
    gradients = [torch.autograd.grad(output.square().sum(), (q, k, v)) for output in outputs]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("compiled", "options"),
    [
        ("none", ()),
        ("blocks", ()),
        ("whole", ()),
        ("blocks", ("parallel.recompute=full",)),
        ("blocks", ("parallel.recompute=selective",)),
        ("none", ("parallel.recompute=selective",)),
        ("none", ("parallel.recompute=full",)),
        ("none", ("parallel.strategy=fsdp",)),
        ("blocks", ("parallel.strategy=fsdp",)),
    ],
)
def test_every_way_to_run_it_trains_alike_and_compiles_only_at_the_start(
    compiled: str, options: tuple[str, ...]
) -> None:
    expected = train("mask", "none", ())
    counters.clear()
    losses, graphs = train("flex", compiled, options)
    assert losses == pytest.approx(expected[0], abs=1e-3)
    assert graphs[-1] == graphs[1] > 0
    assert not counters["graph_break"]


def test_a_training_run_chooses_flex_attention() -> None:
    config = load("tiny-llama", [*SMALL, "data.documents=separate"])
    assert make_step(config).engine.modules[0].document_kernel == "flex"
    assert describe_document_kernel(config.model, DEVICE, ALONE) == "documents: separated by flex_attention"
    dropped = load("tiny-gpt2", ["model.dropout=0.1", "parallel.strategy=single"])
    assert make_step(dropped).engine.modules[0].document_kernel == "mask"


def train(kernel: str, compiled: str, options: tuple[str, ...], steps: int = 6) -> tuple[list[float], list[int]]:
    """Return the losses of some steps, each with other documents, and how many graphs were compiled until then."""
    config = load("tiny-llama", [*SMALL, f"compile.mode={compiled}", *options])
    step = make_step(config)
    for module in step.engine.modules:
        module.document_kernel = kernel
    losses, graphs = [], []
    tokens, _ = make_packed(config)
    for index in range(steps):
        documents = number((10 + index * 40, TOKENS - 10 - index * 40)).contiguous()
        batch = {"inputs": tokens, "targets": tokens.roll(-1, 1), "documents": documents}
        losses.append(float(step.run(batch, config.batch.size).loss))
        graphs.append(counters["stats"]["unique_graphs"])
    return losses, graphs


def build(config: Config, kernel: str) -> torch.nn.Module:
    model = build_model(config.model).to(DEVICE)
    model.init_buffers(DEVICE)
    fill([model], config.run.seed)
    model.document_kernel = kernel
    return model


def make_packed(config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.model.vocab_size, (2, TOKENS), generator=generator)
    return tokens.to(DEVICE), number(LENGTHS)


def number(lengths: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return numbers.to(DEVICE, torch.int32).expand(2, -1)


def compute_gradients(model: torch.nn.Module, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    targets = torch.arange(outputs.shape[1], device=DEVICE).expand(2, -1) % outputs.shape[2]
    loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
