"""Time parts of the trainer one by one: a decoder layer, the head with its loss, the optimizer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from simulator.calibrate.ranks import Ranks
from trainer.config.models import LlamaConfig
from trainer.config.schema import LossConfig, OptimizerConfig
from trainer.models.attention import attend
from trainer.models.llama import Llama
from trainer.objective import CrossEntropy
from trainer.optimizers.optimizer import Optimizer
from trainer.precision import DTYPES


@dataclass(frozen=True)
class Size:
    """Sizes of a measured layer."""

    samples: int
    seq: int
    dim: int
    heads: int
    ffn: int
    vocab: int


CPU_SIZES = (
    Size(1, 16, 32, 4, 64, 64), Size(4, 32, 48, 4, 96, 256), Size(2, 64, 64, 4, 192, 512), Size(4, 64, 96, 4, 192, 256),
    Size(2, 128, 64, 4, 128, 320), Size(1, 256, 64, 4, 192, 256), Size(2, 64, 128, 4, 384, 1024),
    Size(1, 128, 192, 6, 512, 512), Size(1, 64, 256, 8, 688, 1024),
)  # fmt: skip
"""A few milliseconds each, so that some samples are undisturbed by other processes."""
GPU_SIZES = (
    Size(1, 128, 512, 8, 1376, 8192), Size(1, 1024, 1024, 16, 2816, 32768), Size(4, 2048, 2048, 16, 5632, 32768),
    Size(1, 4096, 4096, 32, 14336, 128256), Size(2, 2048, 4096, 32, 11008, 32768), Size(1, 8192, 2048, 16, 8192, 32768),
)  # fmt: skip
CPU_STATES, GPU_STATES = ((16, 16), (64, 64), (64, 128), (16, 384)), ((64, 512), (64, 2048), (32, 8192))
"""Number of square matrices that an optimizer updates, and their width."""


def measure_layers(ranks: Ranks, precision: str) -> list[dict[str, Any]]:
    """Return the seconds of a layer, its attention, and the head with its loss, forward and backward, by size."""
    sizes = GPU_SIZES if ranks.device.type == "cuda" else CPU_SIZES
    return [_measure_size(ranks, size, precision) for size in sizes]


def measure_updates(ranks: Ranks) -> list[dict[str, float]]:
    """Return the seconds of an optimizer step for several numbers of parameters."""
    states = GPU_STATES if ranks.device.type == "cuda" else CPU_STATES
    return [_measure_update(ranks, count, width) for count, width in states]


def _measure_size(ranks: Ranks, size: Size, precision: str) -> dict[str, Any]:
    config = LlamaConfig(
        vocab_size=size.vocab, dim=size.dim, layers=1, heads=size.heads, kv_heads=size.heads, ffn=size.ffn,
        seq_len=size.seq,
    )  # fmt: skip
    model = Llama(config).to(ranks.device)
    model.init_buffers(ranks.device)
    inside = torch.randn(size.samples, size.seq, size.dim, device=ranks.device, requires_grad=True)
    targets = torch.zeros(size.samples, size.seq, dtype=torch.long, device=ranks.device)
    shape = (size.samples, size.heads, size.seq, size.dim // size.heads)
    block, head = model.layers["0"], torch.nn.ModuleList([model.norm, model.head])
    objective = CrossEntropy(LossConfig().chunk_tokens)

    def cast() -> Any:
        return torch.autocast(ranks.device.type, DTYPES[precision], enabled=precision != "fp32")

    def run_layer() -> None:
        with cast():
            out = block(inside)
        out.backward(out.detach())
        _clear_gradients(block, inside)

    heads = [torch.rand(shape, device=ranks.device, requires_grad=True) for _ in range(3)]

    def run_attention() -> None:
        with cast():
            out = attend(*heads)
        out.backward(out.detach())

    def run_head() -> None:
        with cast():
            loss = model.head(model.norm(inside), objective=objective.from_hidden, targets=targets)
        loss.backward()
        _clear_gradients(head, inside)

    works = {"layer_s": run_layer, "attention_s": run_attention, "head_s": run_head}
    return {**asdict(size), **{name: ranks.time_alone(work) for name, work in works.items()}}


def _clear_gradients(module: torch.nn.Module, inside: torch.Tensor) -> None:
    """Remove gradients, as the optimizer does after a step."""
    inside.grad = None
    for parameter in module.parameters():
        parameter.grad = None


def _measure_update(ranks: Ranks, count: int, width: int) -> dict[str, float]:
    values = [(str(i), torch.nn.Parameter(torch.rand(width, width, device=ranks.device))) for i in range(count)]
    for _, value in values:
        value.grad = torch.rand_like(value)
    optimizer = Optimizer(values, OptimizerConfig())
    scale = torch.ones((), device=ranks.device)
    seconds = ranks.time_alone(lambda: optimizer.step(1e-4, scale, None))
    return {"tensors": count, "parameters": count * width * width, "seconds": seconds}
