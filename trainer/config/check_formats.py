"""Rules about the formats of weights and gradients: which of them go together, and which strategies support them."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.errors import ConfigProblem
from trainer.config.models import ResNetConfig
from trainer.config.schema import Config


def check_formats(config: Config) -> Iterator[ConfigProblem]:
    """Check that weights are stored in the format of products, and gradients as the strategy can store them."""
    optimizer = config.optimizer
    if optimizer.master and optimizer.weights == "fp32":
        message = "true, but optimizer.weights is fp32, which needs no copies"
        yield ConfigProblem("optimizer.master", message, "set it to false, or optimizer.weights to bf16")
    if optimizer.weights == "bf16" and config.precision != "bf16":
        message = f"bf16, but precision={config.precision} computes products of {config.precision} weights"
        yield ConfigProblem("optimizer.weights", message, "set it to fp32, or precision to bf16")
    if optimizer.weights == "bf16" and config.fp8.scaling != "none":
        message = f"bf16, but fp8.scaling={config.fp8.scaling} computes products of fp32 weights"
        yield ConfigProblem("optimizer.weights", message, "set it to fp32, or fp8.scaling to none")
    engine, compression = config.parallel.engine, config.communication.compression
    needing_fp32 = (("parallel.engine", engine, "torch"), ("communication.compression", compression, "none"))
    for setting, value, other in needing_fp32:
        for name in ("weights", "gradients"):
            if value != other and getattr(optimizer, name) != "fp32":
                message = f"{getattr(optimizer, name)}, but {setting}={value} sums fp32 gradients of fp32 weights"
                yield ConfigProblem(f"optimizer.{name}", message, f"set it to fp32, or {setting} to {other}")
    if engine == "torch":
        yield from _check_ddp(config)


def check_batch_norm(config: Config) -> Iterator[ConfigProblem]:
    """Check that a model with batch norms has fp32 weights."""
    if config.optimizer.weights == "bf16" and isinstance(config.model, ResNetConfig):
        message = f"bf16, but the batch norms of {config.model.family} need weights in the format of their statistics"
        yield ConfigProblem("optimizer.weights", message, "set it to fp32")


def supports_ddp(config: Config) -> bool:
    """Return whether gradients can be stored under ddp: torch's DDP has them in the format of the weights only.

    With tensor parallelism, fully_shard takes its place, and stores any format.
    """
    return config.optimizer.gradients == config.optimizer.weights or config.parallel.tensor > 1


def _check_ddp(config: Config) -> Iterator[ConfigProblem]:
    """Check that torch's DDP, if it is used, supports the format of the gradients."""
    parallel, gradients, weights = config.parallel, config.optimizer.gradients, config.optimizer.weights
    uses_ddp = parallel.strategy == "ddp" or (parallel.strategy == "single" and parallel.context > 1)
    if not uses_ddp or supports_ddp(config):
        return
    reason = "ddp" if parallel.strategy == "ddp" else "context ranks average gradients by ddp, which"
    message = f"{gradients}, but {reason} stores gradients in the format of the weights, {weights}"
    fix = f"set it to {weights}, or parallel.strategy to fsdp (parallel.zero=1 shards only the optimizer state)"
    yield ConfigProblem("optimizer.gradients", message, fix)
