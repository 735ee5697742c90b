"""Rules about `parallel.engine=muster`: which strategies and options our own engines have."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.errors import ConfigProblem
from trainer.config.models import MoeConfig
from trainer.config.schema import Config, ParallelConfig

STRATEGIES = ("ddp", "fsdp", "hsdp")
OTHER_SCHEDULES = "gpipe, 1f1b or interleaved"


def check_engine(config: Config) -> Iterator[ConfigProblem]:
    """Check that muster's engines have everything that is set, if they are chosen."""
    parallel = config.parallel
    yield from _check_blocks(parallel)
    yield from _check_split_backward(config)
    if parallel.engine == "torch":
        return
    if parallel.strategy not in (*STRATEGIES, "auto") and parallel.pipeline * parallel.tensor == 1:
        message = f"muster, which has no strategy {parallel.strategy}"
        fix = f"set it to torch, or parallel.strategy to {', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}"
        yield ConfigProblem("parallel.engine", message, fix)
    if parallel.expert > 1:
        message = f"muster, which has no expert parallelism, but parallel.expert is {parallel.expert}"
        yield ConfigProblem("parallel.engine", message, "set it to torch, or parallel.expert to 1")
    yield from _check_options(parallel)
    yield from _check_tensor(config)
    if config.compile.cuda_graph:
        message = "true, but the hooks of parallel.engine=muster cannot be captured in a CUDA graph"
        yield ConfigProblem("compile.cuda_graph", message, "set it to false, or parallel.engine to torch")


def _check_split_backward(config: Config) -> Iterator[ConfigProblem]:
    """Check that backward passes can be divided without computing anything twice, if the schedule divides them."""
    parallel = config.parallel
    if parallel.schedule != "zero_bubble":
        return
    if parallel.engine != "muster":
        message = f"zero_bubble, but parallel.engine={parallel.engine} has no such schedule"
        fix = f"set it to {OTHER_SCHEDULES}, or parallel.engine to muster"
        yield ConfigProblem("parallel.schedule", message, fix)
    for where, value, reason in (
        ("parallel.recompute", parallel.recompute, "would be recomputed for each part of the backward pass"),
        ("compile.mode", config.compile.mode, "are compiled with a backward pass that cannot be divided"),
        ("fp8.scaling", config.fp8.scaling, "compute both gradients of a product at once"),
    ):
        if value != "none":
            message = f"zero_bubble, but with {where}={value}, layers {reason}"
            fix = f"set it to {OTHER_SCHEDULES}, or {where} to none"
            yield ConfigProblem("parallel.schedule", message, fix)


def _check_tensor(config: Config) -> Iterator[ConfigProblem]:
    """Check that tensor parallelism is used on its own, with layers that are split."""
    parallel = config.parallel
    if parallel.tensor == 1:
        return
    for where, value, allowed in (
        ("parallel.strategy", parallel.strategy, "single"),
        ("parallel.pipeline", parallel.pipeline, 1),
        ("parallel.context", parallel.context, 1),
        ("lora.rank", config.lora.rank, 0),
        ("compile.mode", config.compile.mode, "none"),
        # Ranks would drop different activations of the tokens that all of them compute.
        ("model.dropout", getattr(config.model, "dropout", 0.0), 0),
    ):
        if value != allowed:
            message = f"muster, whose parallel.tensor={parallel.tensor} works on its own, but {where} is {value}"
            yield ConfigProblem("parallel.engine", message, f"set it to torch, or {where} to {allowed}")
    if config.batch.micro == "auto":
        message = f"auto, but the estimate of memory does not know parallel.tensor={parallel.tensor} of engine=muster"
        yield ConfigProblem("batch.micro", message, "set it to a number, or parallel.engine to torch")
    if isinstance(config.model, MoeConfig):
        message = f"muster, which splits no experts, but {config.model.family} has experts and parallel.tensor is "
        message += f"{parallel.tensor}"
        yield ConfigProblem("parallel.engine", message, "set it to torch, or parallel.tensor to 1")


def _check_options(parallel: ParallelConfig) -> Iterator[ConfigProblem]:
    """Check options that only torch's engines have."""
    if parallel.static_graph:
        message = "true, but parallel.engine=muster needs no such assumption"
        yield ConfigProblem("parallel.static_graph", message, "set it to false, or parallel.engine to torch")
    if not parallel.bucket_view:
        message = "false, but parallel.engine=muster always keeps gradients in buckets"
        yield ConfigProblem("parallel.bucket_view", message, "set it to true, or parallel.engine to torch")
    if parallel.offload and parallel.pipeline > 1:
        message = (
            f"true, but parallel.engine=muster moves no stages of parallel.pipeline={parallel.pipeline} to the host"
        )
        yield ConfigProblem("parallel.offload", message, "set it to false, or parallel.engine to torch")


def _check_blocks(parallel: ParallelConfig) -> Iterator[ConfigProblem]:
    if not parallel.check_blocks:
        return
    if parallel.engine != "muster":
        message = f"true, but parallel.engine={parallel.engine} has no such check"
        yield ConfigProblem("parallel.check_blocks", message, "set it to false, or parallel.engine to muster")
    elif parallel.strategy not in ("fsdp", "hsdp", "auto"):
        message = f"true, but parallel.strategy={parallel.strategy} has no blocks"
        yield ConfigProblem("parallel.check_blocks", message, "set it to false, or parallel.strategy to fsdp or hsdp")
