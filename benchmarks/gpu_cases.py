"""The training steps that `benchmarks.gpu` measures, and the optimisations that it can leave out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from trainer.config.layout import resolve_layout
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.models.fp8_cast import cast_fp8
from trainer.models.fp8_formats import E5M2, Cast
from trainer.models.fused_loss import differentiate_rows
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.objective import CrossEntropy
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Batch, Recipe
from trainer.parallel.mesh import Mesh
from trainer.step import Step

DEVICE = torch.device("cuda", 0)


@dataclass(frozen=True)
class Case:
    """A preset with its settings, the samples of a step, and the best peer on the same kind of GPU."""

    preset: str
    samples: int
    settings: tuple[str, ...] = ("parallel.strategy=single",)
    peer: str = ""
    peer_rate: int = 0
    """Tokens or images per second of the peer, measured in an earlier run on an H200."""

    def load(self) -> Config:
        """Return the settings of a run with one micro-batch per step."""
        return load(self.preset, [*self.settings, f"batch.size={self.samples}", f"batch.micro={self.samples}"])


_TORCHTITAN_1B, _TORCHTITAN_3B = ("torchtitan", 61_679), ("torchtitan", 24_229)
_SMALL_STATE = ("optimizer.gradients=bf16", "optimizer.moments=bf16")
_8B = ("parallel.strategy=single", "parallel.recompute=none", "data.seq_len=4096", *_SMALL_STATE)
_SINGLE, _GRAPH, _FP8 = "parallel.strategy=single", "compile.cuda_graph=true", "fp8.scaling=tensor"
_MASTER = ("optimizer.weights=bf16", "optimizer.master=true", "optimizer.gradients=bf16")
_LARGE_CHUNKS = "loss.chunk_tokens=16384"
CASES = {
    "llama-1b": Case("llama-1b", 8, (_SINGLE,), *_TORCHTITAN_1B),
    "llama-1b-large-chunks": Case("llama-1b", 8, (_SINGLE, _LARGE_CHUNKS), *_TORCHTITAN_1B),
    "llama-1b-master": Case("llama-1b", 8, (_SINGLE, _LARGE_CHUNKS, *_MASTER), *_TORCHTITAN_1B),
    "llama-1b-master-whole": Case(
        "llama-1b", 8, (_SINGLE, _LARGE_CHUNKS, *_MASTER, "compile.mode=whole"), *_TORCHTITAN_1B
    ),
    "llama-1b-whole": Case("llama-1b", 8, (_SINGLE, _LARGE_CHUNKS, "compile.mode=whole"), *_TORCHTITAN_1B),
    "llama-1b-fsdp": Case("llama-1b", 8, (_LARGE_CHUNKS,), *_TORCHTITAN_1B),
    "llama-1b-fp8": Case("llama-1b", 8, (_SINGLE, _FP8), "torchtitan fp8", 73_096),
    "llama-1b-fp8-delayed": Case("llama-1b", 8, (_SINGLE, "fp8.scaling=delayed"), "torchtitan fp8", 73_096),
    "llama-1b-fp8-head": Case(
        "llama-1b", 8, (_SINGLE, "fp8.scaling=delayed", "fp8.head=true", _LARGE_CHUNKS), "torchtitan fp8", 73_096
    ),
    "llama-1b-fp8-rows": Case("llama-1b", 8, (_SINGLE, "fp8.scaling=row")),
    "llama-3b-fp8": Case("llama-3b", 8, (_SINGLE, _FP8), "torchtitan fp8", 31_930),
    "llama-3b": Case("llama-3b", 4, (_SINGLE,), *_TORCHTITAN_3B),
    "llama-8b": Case("llama-8b", 2, (*_8B, "optimizer.weights=bf16")),
    "llama-8b-fp8": Case("llama-8b", 2, (*_8B, _FP8)),
    "llama-8b-fp8-delayed": Case("llama-8b", 2, (*_8B, "fp8.scaling=delayed")),
    "llama-8b-fp8-head": Case("llama-8b", 2, (*_8B, "fp8.scaling=delayed", "fp8.head=true")),
    "gpt2-124m-one-chunk": Case("gpt2-124m", 64, (_SINGLE, _GRAPH, "loss.chunk_tokens=65536"), "nanoGPT", 525_680),
    "gpt2-124m": Case("gpt2-124m", 64, (_SINGLE, _GRAPH, _LARGE_CHUNKS), "nanoGPT", 525_680),
    "resnet50": Case("resnet50", 256, (_SINGLE, _GRAPH, "compile.mode=none"), "torchvision", 6_814),
}


def cast_slopes_apart(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor) -> Cast:
    """Write the gradients of logits in bf16 first, and cast them to fp8 then."""
    differentiate_rows(logits, targets, losses, 1.0)
    return cast_fp8(logits, scale, E5M2)


SWITCHES: dict[str, dict[str, Any]] = {
    "fused-loss": {"trainer.models.fused_loss.is_available": lambda _device: False},
    "bf16-residual": {
        "trainer.models.llama.begin_residual": lambda embedded: embedded,
        "trainer.models.gpt2.begin_residual": lambda embedded: embedded,
    },
    "joint-products": {"trainer.models.projections.can_join": lambda _x, _layers: False},
    "norm-gradients": {"trainer.models.llama.can_fuse": lambda _x, _norm: False},
    "adamw-kernel": {"trainer.optimizers.adamw.has_kernel": lambda _slot: False},
    "stored-casts": {"trainer.models.fp8.casts_stored_weight": lambda _weight: False},
    "activation-casts": {"trainer.models.llama.can_feed_forward": lambda _layers: False},
    "slope-casts": {"trainer.models.fp8_head.differentiate_rows_fp8": cast_slopes_apart},
    "cuda-graph": {"trainer.parallel.apply._find_graph_obstacle": lambda _recipe, _mesh: "it is left out"},
    "bias-sums": {
        "trainer.models.gpt2.can_sum": lambda _x, _layers: False,
        "trainer.models.projections.can_sum": lambda _x, _layers: False,
    },
    "norm-kernels": {
        "trainer.models.batch_norm.has_kernel": lambda _x, _norm: False,
        "trainer.models.forked_convolution.has_kernel": lambda _x, _norm: False,
    },
    "forks": {"trainer.models.forked_convolution.can_fork": lambda _x, _conv, _norm: False},
    "pool-kernels": {"trainer.models.max_pool.has_kernel": lambda _x: False},
    "block-kernel": {"trainer.models.resnet.has_kernel": lambda _images: False},
    "block-stem": {
        "trainer.models.resnet.has_kernel": lambda _images: False,
        "trainer.models.resnet.Stem.convolve": lambda stem, x: stem.conv(x),
    },
}
"""What replaces an optimisation, by its name: the plain way, on all of the project's paths that use it."""


@contextmanager
def leave_out(names: str) -> Iterator[None]:
    """Run a block without the optimisations of these names, joined by +."""
    with ExitStack() as stack:
        for name in names.split("+") if names else ():
            for target, replacement in SWITCHES[name].items():
                stack.enter_context(patch(target, replacement))
        yield


def make_step(config: Config, device: torch.device = DEVICE) -> Step:
    """Return the step that the trainer would run."""
    recipe = Recipe(config.parallel, config.precision, config.compile, config.fp8, optimizer=config.optimizer)
    layout = resolve_layout(config.parallel, 1, 1)
    mesh = Mesh(layout, 0, device, uses_fully_shard=recipe.uses_fully_shard(layout))
    weights = partial(fill, seed=config.run.seed, device=device)
    engine = parallelize(partial(build_model, config.model), recipe, mesh, weights)
    return Step(engine, config, CrossEntropy(config.loss.chunk_tokens))


def make_batch(config: Config, samples: int) -> Batch:
    """Return random tokens or images, in the formats in which the loader copies them to the GPU."""
    draw = partial(torch.randint, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1))
    model: Any = config.model
    if model.family == "resnet":
        size = (samples, 3, model.image_size, model.image_size)
        return {"inputs": draw(256, size, dtype=torch.uint8), "targets": draw(model.classes, (samples,))}
    tokens = draw(model.vocab_size, (samples, (config.data.seq_len or model.seq_len) + 1))
    return {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
