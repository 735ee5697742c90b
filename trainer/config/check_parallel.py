"""Rules about parallelism: which options each strategy supports, and how the axes divide a model."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.convert import FAMILIES
from trainer.config.errors import ConfigProblem, list_divisors, list_nearest_multiples
from trainer.config.layout import check_vocabulary, find_length_factor
from trainer.config.models import DecoderConfig, LlamaLikeConfig, MoeConfig
from trainer.config.schema import Config, ParallelConfig, StoredFormat

LANGUAGE_MODELS = ", ".join(family for family, model in FAMILIES.items() if issubclass(model, DecoderConfig))


def check_strategy_options(config: Config) -> Iterator[ConfigProblem]:
    """Check that the strategy supports the options that are set."""
    parallel = config.parallel
    if parallel.shard and parallel.strategy not in ("hsdp", "auto"):
        message = f"{parallel.shard}, but the strategy is {parallel.strategy}"
        yield ConfigProblem("parallel.shard", message, "set parallel.strategy to hsdp, or parallel.shard to 0")
    if parallel.offload and parallel.strategy in ("single", "ddp"):
        message = f"{parallel.strategy} does not support offload"
        yield ConfigProblem(
            "parallel.offload", message, "set parallel.strategy to fsdp or hsdp, or parallel.offload to false"
        )
    if parallel.find_unused_parameters:
        yield from _check_unused(parallel)
    if parallel.reduce != "fp32":
        yield from _check_reduction(parallel, config.optimizer.gradients)
    is_split = parallel.strategy in ("fsdp", "hsdp") or parallel.pipeline > 1
    if config.compile.mode == "whole" and is_split:
        reason = "a pipeline" if parallel.pipeline > 1 else parallel.strategy
        message = f"whole, but {reason} runs code between the blocks"
        yield ConfigProblem("compile.mode", message, "use blocks")
    if config.compile.cuda_graph:
        yield from _check_graph(config)


def check_tensor_parallel(config: Config) -> Iterator[ConfigProblem]:
    """Check that tensor parallelism divides the model's layers evenly."""
    model, ranks = config.model, config.parallel.tensor
    if ranks == 1:
        return
    if not isinstance(model, DecoderConfig):
        message = f"{ranks}, but {model.family} has no tensor-parallel plan"
        yield ConfigProblem("parallel.tensor", message, f"set it to 1, or use a model of {LANGUAGE_MODELS}")
        return
    parts = {"heads": model.heads}
    # muster's engine splits neither sequences nor the vocabulary.
    is_torch = config.parallel.engine == "torch"
    if config.parallel.context == 1 and is_torch:
        parts["seq_len"] = config.data.seq_len or model.seq_len
    if isinstance(model, LlamaLikeConfig):
        parts |= {"kv_heads": model.kv_heads, "ffn": model.ffn}
    for name, value in parts.items():
        if value % ranks:
            message = f"{ranks} ranks do not divide {name} {value}"
            yield ConfigProblem("parallel.tensor", message, f"use one of {list_divisors(value)}")
    if is_torch:
        yield from check_vocabulary(model.vocab_size, ranks)


def check_context_parallel(config: Config) -> Iterator[ConfigProblem]:
    """Check that the model reads sequences, and that they can be cut into equal chunks, two for each rank."""
    model, ranks, tensor = config.model, config.parallel.context, config.parallel.tensor
    if ranks == 1:
        return
    if not isinstance(model, DecoderConfig):
        message = f"{ranks}, but {model.family} has no sequences to split"
        yield ConfigProblem("parallel.context", message, f"set it to 1, or use a model of {LANGUAGE_MODELS}")
        return
    length = config.data.seq_len or model.seq_len
    factor, divisor = find_length_factor(ranks, tensor)
    if length % factor:
        where = "data.seq_len" if config.data.seq_len else "model.seq_len"
        message = f"{length} tokens are not divisible by {divisor} = {factor}"
        yield ConfigProblem(where, message, f"use {list_nearest_multiples(length, factor)}")


def check_pipeline(config: Config) -> Iterator[ConfigProblem]:
    """Check that the model can be cut into the pipeline's stages."""
    model, parallel = config.model, config.parallel
    if parallel.pipeline == 1:
        return
    if not isinstance(model, DecoderConfig):
        message = f"{parallel.pipeline}, but {model.family} cannot be cut into stages"
        yield ConfigProblem("parallel.pipeline", message, f"set it to 1, or use a model of {LANGUAGE_MODELS}")
        return
    if model.tie_embeddings:
        message = f"{parallel.pipeline} stages, but embedding and head share weights and would be on different ranks"
        yield ConfigProblem(
            "parallel.pipeline", message, "set model.tie_embeddings to false, or parallel.pipeline to 1"
        )
    each = parallel.virtual_stages if parallel.schedule == "interleaved" else 1
    if model.layers < parallel.pipeline * each:
        message = f"{parallel.pipeline} ranks x {each} stages need at least {parallel.pipeline * each} layers, "
        message += f"the model has {model.layers}"
        yield ConfigProblem(
            "parallel.pipeline", message, f"use at most {model.layers // each}" if model.layers >= each else ""
        )


def _check_unused(parallel: ParallelConfig) -> Iterator[ConfigProblem]:
    where = "parallel.find_unused_parameters"
    if parallel.strategy not in ("ddp", "auto"):
        message = f"true, but the strategy is {parallel.strategy}, which needs no search"
        yield ConfigProblem(where, message, "set it to false, or parallel.strategy to ddp")
    if parallel.static_graph:
        message = "true, but parallel.static_graph assumes that every step uses all weights"
        yield ConfigProblem(where, message, "set one of the two to false")
    if parallel.pipeline > 1:
        message = "true, but pipeline stages do not search their graphs"
        yield ConfigProblem(where, message, "set it to false, or parallel.pipeline to 1")


def _check_reduction(parallel: ParallelConfig, gradients: StoredFormat) -> Iterator[ConfigProblem]:
    """Check that gradients are reduced at all, and that no sum over micro-batches is kept in a shorter format."""
    value = parallel.reduce
    if parallel.strategy == "single" and parallel.context == 1:
        message = f"{value}, but the strategy is single, which reduces no gradients"
        yield ConfigProblem("parallel.reduce", message, "set it to fp32, or parallel.strategy to ddp, fsdp or hsdp")
        return
    if gradients == value:
        return
    # Each rank holds whole weights under ddp, and under single if context ranks share sequences.
    may_be_ddp = parallel.strategy in ("single", "ddp", "auto") and parallel.tensor == 1
    may_be_sharded = parallel.strategy not in ("single", "ddp") or parallel.tensor > 1
    if may_be_ddp and parallel.accumulate == "sync" and parallel.pipeline == 1:
        message = f"{value}, but parallel.accumulate=sync would sum micro-batches in {value} under ddp"
        yield ConfigProblem("parallel.reduce", message, "set it to fp32, or parallel.accumulate to auto")
    if not may_be_sharded:
        return
    if parallel.accumulate == "defer":
        message = f"{value}, but parallel.accumulate=defer would sum micro-batches in {value} under fsdp"
        yield ConfigProblem("parallel.reduce", message, "set it to fp32, or parallel.accumulate to auto or sync")
    if parallel.pipeline > 1:
        message = f"{value}, but pipeline stages would sum micro-batches in {value} under fsdp"
        yield ConfigProblem("parallel.reduce", message, "set it to fp32, or parallel.strategy to ddp")


def _check_graph(config: Config) -> Iterator[ConfigProblem]:
    """Check that a CUDA graph would contain no communication, no choice of experts and no second forward pass."""
    parallel, obstacles = config.parallel, []
    if parallel.strategy in ("fsdp", "hsdp"):
        obstacles.append(("parallel.strategy", f"{parallel.strategy} gathers weights"))
    obstacles += [
        (f"parallel.{axis}", f"ranks of parallel.{axis}={getattr(parallel, axis)} communicate")
        for axis in ("tensor", "context", "expert", "pipeline")
        if getattr(parallel, axis) > 1
    ]
    if parallel.recompute != "none":
        # It reads and restores the GPU's random state, which torch does not allow while it records a graph.
        obstacles.append(("parallel.recompute", f"parallel.recompute={parallel.recompute} repeats the forward pass"))
    if isinstance(config.model, MoeConfig):
        obstacles.append(("model.family", f"{config.model.family} sends other numbers of tokens to its experts"))
    for setting, reason in obstacles:
        message = f"true, but {reason} within a micro-batch"
        yield ConfigProblem("compile.cuda_graph", message, f"set it to false, or change {setting}")
