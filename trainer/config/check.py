"""Rules between settings, and between settings and the number of ranks; each names the numbers that clash."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import BatchConfig, Config, Gpt2Config, LlamaConfig, MlpConfig, ParallelConfig, ResNetConfig

Rule = Callable[[Config], Iterator[Problem]]
LARGEST_DIVISOR = 65_536


def check(config: Config) -> list[Problem]:
    """What is wrong whatever the world looks like."""
    return [problem for rule in RULES for problem in rule(config)]


def check_world(config: Config, world_size: int, local_size: int) -> list[Problem]:
    """Why this run cannot start on this many ranks, or nothing."""
    # Planners read the configuration without the parallel room.
    from trainer.parallel import layout  # noqa: PLC0415

    parallel = config.parallel
    if parallel.strategy == "auto":
        # Which strategy is chosen later changes how ranks share the model, not how many share the batch.
        parallel = replace(parallel, strategy="hsdp" if parallel.shard else "ddp")
    try:
        dp_size = layout.resolve(parallel, world_size, local_size).dp_size
    except ConfigError as error:
        return error.problems
    return _batch(config.batch, dp_size) or _micro_batches(config.batch, parallel, dp_size)


def name_is_a_folder_name(config: Config) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.name):
        yield Problem("name", f"{config.name!r} names a folder", "use letters, digits, '.', '_' and '-'")
    unknown = sorted(set(re.findall(r"{[^}]*}?", config.run.folder)) - {"{name}"})
    if unknown or not config.run.folder:
        what = f"{unknown[0]} is not known" if unknown else "is empty"
        yield Problem("run.folder", what, "only {name} stands for something, the run's name")


def heads_divide(config: Config) -> Iterator[Problem]:
    model = config.model
    if not isinstance(model, LlamaConfig | Gpt2Config):
        return
    if model.dim % model.heads:
        fix = f"use {nearest(model.dim, model.heads)} for dim, or a number of heads out of {divisors(model.dim)}"
        yield Problem("model.heads", f"{model.heads} heads do not divide dim {model.dim}", fix)
    if not isinstance(model, LlamaConfig):
        return
    if model.dim % model.heads == 0 and model.dim // model.heads % 2:
        message = f"dim {model.dim} / heads {model.heads} = {model.dim // model.heads} is odd: rotary pairs do not fit"
        yield Problem("model.heads", message, f"use dim {2 * model.dim} or other heads")
    if model.heads % model.kv_heads:
        message = f"{model.kv_heads} key-value heads do not divide {model.heads} heads"
        yield Problem("model.kv_heads", message, f"use one of {divisors(model.heads)}")


def layers_have_width(config: Config) -> Iterator[Problem]:
    if isinstance(config.model, MlpConfig) and any(width < 1 for width in config.model.hidden):
        yield Problem(
            "model.hidden", f"{list(config.model.hidden)} has a layer without width", "use 1 or more for each"
        )


def data_suits_the_model(config: Config) -> Iterator[Problem]:
    model, data = config.model, config.data
    longest = model.seq_len if isinstance(model, LlamaConfig | Gpt2Config) else 0
    if data.kind == "tokens" and not longest:
        yield Problem("data.kind", f"{model.family} does not read tokens", "use synthetic, or a llama or gpt2 model")
    if data.kind == "images" and not isinstance(model, ResNetConfig):
        yield Problem("data.kind", f"{model.family} does not read images", "use synthetic, or a resnet model")
    if data.kind != "synthetic" and not data.path:
        how = "make shards with `python -m trainer prepare`" if data.kind == "tokens" else "a folder for each class"
        yield Problem("data.path", f"is empty, and {data.kind} come from a folder", f"set data.path ({how})")
    if longest and data.seq_len > longest:
        fix = f"use at most {longest}, or raise model.seq_len"
        yield Problem("data.seq_len", f"{data.seq_len} is longer than the model's {longest}", fix)
    if data.seq_len and not longest:
        yield Problem("data.seq_len", f"{data.seq_len}, but samples of {model.family} have no tokens", "set it to 0")


def micro_divides_batch(config: Config) -> Iterator[Problem]:
    size, micro = config.batch.size, config.batch.micro
    if isinstance(micro, int) and size % micro:
        fix = f"use a batch.size of {nearest(size, micro)}, or a batch.micro out of {divisors(size)}"
        yield Problem("batch.micro", f"{micro} does not divide batch.size {size}", fix)
    # One number per channel has no variance: torch's batch norm refuses it.
    if isinstance(config.model, ResNetConfig) and micro == 1 and config.model.image_size <= 32:  # noqa: PLR2004
        message = f"1 sample of {config.model.image_size} pixels leaves one number per channel to normalise"
        yield Problem("batch.micro", message, "use 2 or more")


def rollback_has_a_choice(config: Config) -> Iterator[Problem]:
    if config.health.spike == "rollback" and config.checkpoint.keep == 1:
        message = "1, but the newest may hold the very update that made the loss rise (health.spike=rollback)"
        yield Problem("checkpoint.keep", message, "use 2 or more")


def optimizer_converges(config: Config) -> Iterator[Problem]:
    for name in ("beta1", "beta2", "momentum"):
        value = getattr(config.optimizer, name)
        if value >= 1:
            yield Problem(f"optimizer.{name}", f"{value:g} never forgets", "use less than 1")


def strategy_has_the_option(config: Config) -> Iterator[Problem]:
    parallel = config.parallel
    if parallel.shard and parallel.strategy not in ("hsdp", "auto"):
        message = f"{parallel.shard}, but the strategy is {parallel.strategy}"
        yield Problem("parallel.shard", message, "set parallel.strategy to hsdp, or parallel.shard to 0")
    if parallel.offload and parallel.strategy in ("single", "ddp"):
        message = f"{parallel.strategy} cannot offload"
        yield Problem(
            "parallel.offload", message, "set parallel.strategy to fsdp or hsdp, or parallel.offload to false"
        )
    is_split = parallel.strategy in ("fsdp", "hsdp") or parallel.pipeline > 1
    if config.compile.mode == "whole" and is_split:
        what = "a pipeline" if parallel.pipeline > 1 else parallel.strategy
        message = f"whole, but {what} works between the blocks"
        yield Problem("compile.mode", message, "use blocks")


def tensor_parallel_fits(config: Config) -> Iterator[Problem]:
    model, ranks = config.model, config.parallel.tensor
    if ranks == 1:
        return
    if not isinstance(model, LlamaConfig | Gpt2Config):
        message = f"{ranks}, but {model.family} has no plan for splitting its layers"
        yield Problem("parallel.tensor", message, "set it to 1, or use a llama or gpt2 model")
        return
    parts = {"heads": model.heads, "seq_len": config.data.seq_len or model.seq_len}
    if isinstance(model, LlamaConfig):
        parts |= {"kv_heads": model.kv_heads, "ffn": model.ffn}
    for name, value in parts.items():
        if value % ranks:
            message = f"{ranks} ranks do not divide {name} {value}"
            yield Problem("parallel.tensor", message, f"use one of {divisors(value)}")


def pipeline_fits(config: Config) -> Iterator[Problem]:
    model, parallel = config.model, config.parallel
    if parallel.pipeline == 1:
        return
    if not isinstance(model, LlamaConfig | Gpt2Config):
        message = f"{parallel.pipeline}, but {model.family} is not cut into stages"
        yield Problem("parallel.pipeline", message, "set it to 1, or use a llama or gpt2 model")
        return
    if model.tie_embeddings:
        message = f"{parallel.pipeline} stages, but embedding and head share weights and would lie on different ranks"
        yield Problem("parallel.pipeline", message, "set model.tie_embeddings to false, or parallel.pipeline to 1")
    each = parallel.virtual_stages if parallel.schedule == "interleaved" else 1
    if model.layers < parallel.pipeline * each:
        message = f"{parallel.pipeline} ranks x {each} stages need as many layers, the model has {model.layers}"
        yield Problem(
            "parallel.pipeline", message, f"use at most {model.layers // each}" if model.layers >= each else ""
        )


RULES: tuple[Rule, ...] = (
    name_is_a_folder_name,
    heads_divide,
    layers_have_width,
    data_suits_the_model,
    micro_divides_batch,
    optimizer_converges,
    rollback_has_a_choice,
    strategy_has_the_option,
    tensor_parallel_fits,
    pipeline_fits,
)


def _batch(batch: BatchConfig, dp_size: int) -> list[Problem]:
    micro = 1 if batch.micro == "auto" else batch.micro
    each = dp_size * micro
    if batch.size % each == 0:
        return []
    of = f"{dp_size} data-parallel ranks" + (f" x batch.micro {micro} = {each}" if micro > 1 else "")
    fix = f"use {nearest(batch.size, each)}, or a number of data-parallel ranks out of {divisors(batch.size // micro)}"
    if batch.size % micro:
        fix = f"use {nearest(batch.size, each)}"
    return [Problem("batch.size", f"{batch.size} is not divisible by {of}", fix)]


def _micro_batches(batch: BatchConfig, parallel: ParallelConfig, dp_size: int) -> list[Problem]:
    """A pipeline is only full with as many micro-batches as it has ranks; torch's schedules refuse fewer."""
    micro = 1 if batch.micro == "auto" else batch.micro
    count = batch.size // (dp_size * micro)
    if parallel.pipeline == 1 or count >= parallel.pipeline:
        return []
    message = f"{batch.size} makes {count} micro-batches of {micro} on each of {dp_size} data-parallel ranks, "
    message += f"the pipeline needs {parallel.pipeline}"
    return [Problem("batch.size", message, f"use {dp_size * micro * parallel.pipeline} or more, or fewer stages")]


def nearest(number: int, factor: int) -> str:
    """The multiples of a factor below and above a number, in words."""
    below = number // factor * factor
    return f"{below} or {below + factor}" if below else str(factor)


def divisors(number: int) -> str:
    """Those that anybody would choose: a mistyped number has nobody wait for the rest."""
    return ", ".join(str(n) for n in range(1, min(number, LARGEST_DIVISOR) + 1) if number % n == 0)
