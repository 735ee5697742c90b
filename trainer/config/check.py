"""Rules that several settings, or settings and the number of ranks, must satisfy together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from trainer.config.check_communication import check_compression
from trainer.config.check_effect import check_effect
from trainer.config.check_engine import check_engine
from trainer.config.check_formats import check_batch_norm, check_formats
from trainer.config.check_fp8 import check_fp8
from trainer.config.check_inner_steps import check_inner_steps
from trainer.config.check_parallel import (
    LANGUAGE_MODELS,
    check_context_parallel,
    check_pipeline,
    check_strategy_options,
    check_tensor_parallel,
)
from trainer.config.check_pattern import check_pattern
from trainer.config.check_replay import check_replay
from trainer.config.check_sources import check_mixture, check_remote
from trainer.config.convert import FAMILIES
from trainer.config.errors import ConfigError, ConfigProblem, list_divisors, list_nearest_multiples
from trainer.config.layout import resolve_layout
from trainer.config.models import DecoderConfig, LlamaLikeConfig, MlpConfig, MoeConfig, ResNetConfig
from trainer.config.schema import BatchConfig, Config, EvaluationConfig, ParallelConfig
from trainer.optimizers.groups import explain_no_tensor_parallel, parse_decay_groups
from trainer.schedule import count_decay_steps

Rule = Callable[[Config], Iterator[ConfigProblem]]

MIXTURES = ", ".join(family for family, model in FAMILIES.items() if issubclass(model, MoeConfig))


def check(config: Config) -> list[ConfigProblem]:
    """Return the problems of a configuration that do not depend on the number of ranks."""
    return [problem for rule in RULES for problem in rule(config)]


def check_own_model(config: Config) -> list[ConfigProblem]:
    """Return the problems of a configuration whose model and data are not ours but given as objects."""
    return [problem for rule in RULES if rule not in _RULES_FOR_FAMILIES for problem in rule(config)]


def check_world(config: Config, world_size: int, local_size: int) -> list[ConfigProblem]:
    """Return the problems that keep the run from starting on `world_size` ranks, `local_size` of them on each node."""
    parallel = config.parallel
    if parallel.strategy == "auto":
        # Whichever strategy is chosen later, the number of ranks that share the batch is the same.
        parallel = replace(parallel, strategy="hsdp" if parallel.shard else "ddp")
    try:
        dp_size = resolve_layout(parallel, world_size, local_size).dp_size
    except ConfigError as error:
        return error.problems
    return _check_batch_size(config.batch, dp_size) or _check_micro_batches(config.batch, parallel, dp_size)


def check_names(config: Config) -> Iterator[ConfigProblem]:
    """Check that the run's name and folder can be used as paths."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.name):
        yield ConfigProblem(
            "name", f"{config.name!r} is not a valid folder name", "use letters, digits, '.', '_' and '-'"
        )
    unknown = sorted(set(re.findall(r"{[^}]*}?", config.run.folder)) - {"{name}"})
    if unknown or not config.run.folder:
        message = f"{unknown[0]} is not a placeholder" if unknown else "is empty"
        yield ConfigProblem("run.folder", message, "give a path; {name} in it is replaced by the run's name")


def check_project(config: Config) -> Iterator[ConfigProblem]:
    """Check that the project's name is allowed in Weights & Biases, whose rules are stricter than MLflow's."""
    project = config.metrics.project
    if not re.fullmatch(r"[^/\\#?%:]{1,128}", project) or not project.strip():
        message = f"{project!r} is not a project name"
        yield ConfigProblem("metrics.project", message, "use 1 to 128 characters other than / \\ # ? % :")


def check_heads(config: Config) -> Iterator[ConfigProblem]:
    """Check that attention heads divide the width, and key-value heads the query heads."""
    model = config.model
    if not isinstance(model, DecoderConfig):
        return
    is_divided = not (isinstance(model, LlamaLikeConfig) and model.head_dim)
    if is_divided and model.dim % model.heads:
        fix = f"use {list_nearest_multiples(model.dim, model.heads)} for dim, "
        fix += f"or a number of heads out of {list_divisors(model.dim)}"
        yield ConfigProblem("model.heads", f"{model.heads} heads do not divide dim {model.dim}", fix)
    if not isinstance(model, LlamaLikeConfig):
        return
    if model.head_dim % 2:
        message = f"{model.head_dim} is odd, but rotary positions need an even number"
        yield ConfigProblem("model.head_dim", message, f"use {model.head_dim + 1}, or 0 for dim / heads")
    elif is_divided and model.dim % model.heads == 0 and model.dim // model.heads % 2:
        message = f"dim {model.dim} / heads {model.heads} = {model.dim // model.heads} is odd, "
        message += "but rotary positions need an even number"
        yield ConfigProblem("model.heads", message, f"use dim {2 * model.dim} or another number of heads")
    if model.heads % model.kv_heads:
        message = f"{model.kv_heads} key-value heads do not divide {model.heads} heads"
        yield ConfigProblem("model.kv_heads", message, f"use one of {list_divisors(model.heads)}")


def check_rope_scaling(config: Config) -> Iterator[ConfigProblem]:
    """Check that the settings of rotary positions stretch them, or all leave them as they are."""
    model = config.model
    if not isinstance(model, LlamaLikeConfig):
        return
    if model.rope_scaling == "none" and model.rope_factor != 1:
        message = f"{model.rope_factor:g}, but model.rope_scaling is none"
        yield ConfigProblem("model.rope_factor", message, "set model.rope_scaling to linear or llama3, or this to 1")
    if model.rope_scaling != "none" and model.rope_factor == 1:
        message = f"1, which stretches nothing, but model.rope_scaling is {model.rope_scaling}"
        fix = "set it to more than 1 (Llama 3.1 has 8, Llama 3.2 has 32), or model.rope_scaling to none"
        yield ConfigProblem("model.rope_factor", message, fix)
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    if model.rope_scaling == "llama3" and low >= high:
        message = f"{low:g} is not below model.rope_high_freq_factor {high:g}"
        yield ConfigProblem("model.rope_low_freq_factor", message, f"use less than {high:g}")


def check_experts(config: Config) -> Iterator[ConfigProblem]:
    """Check that a mixture of experts has the experts that a token uses, and a strategy that can split them."""
    model, parallel = config.model, config.parallel
    if not isinstance(model, MoeConfig):
        if parallel.expert > 1:
            message = f"{parallel.expert}, but {model.family} has no experts"
            yield ConfigProblem("parallel.expert", message, f"set it to 1, or use a model of {MIXTURES}")
        return
    if model.top_k > model.experts:
        message = f"{model.top_k} experts per token, but model.experts is {model.experts}"
        yield ConfigProblem("model.top_k", message, f"use at most {model.experts}")
    for name, balance in (("balance_loss", "loss"), ("balance_rate", "bias")):
        if model.balance == balance and not getattr(model, name):
            message = f"0 balances nothing, but model.balance is {balance}"
            yield ConfigProblem(f"model.{name}", message, "use more than 0, or set model.balance to none")
    if parallel.tensor > 1 and parallel.expert > 1:
        message = f"{parallel.expert}, but parallel.tensor={parallel.tensor} splits every expert"
        yield ConfigProblem("parallel.expert", message, "set one of the two to 1")
    if model.experts % parallel.expert:
        message = f"{parallel.expert} ranks do not divide {model.experts} experts"
        yield ConfigProblem("parallel.expert", message, f"use one of {list_divisors(model.experts)}")
    if parallel.expert > 1 and parallel.offload:
        message = f"{parallel.expert}, but parallel.offload moves no experts to the host"
        yield ConfigProblem("parallel.expert", message, "set it to 1, or parallel.offload to false")
    if config.optimizer.moments == "int8" and parallel.strategy in ("fsdp", "hsdp", "auto"):
        message = f"int8 stores blocks of a row, but {parallel.strategy} may split the rows of experts"
        fix = "use bf16 or fp32, or set parallel.strategy to ddp"
        yield ConfigProblem("optimizer.moments", message, fix)


def check_lora(config: Config) -> Iterator[ConfigProblem]:
    """Check that LoRA has weights to change, and layers to change them in."""
    lora = config.lora
    if not lora.rank:
        return
    if not config.checkpoint.initial:
        message = f"{lora.rank}, but checkpoint.initial is empty, so the frozen weights would stay random"
        yield ConfigProblem("lora.rank", message, "set checkpoint.initial to the weights to start from, or this to 0")
    if not lora.alpha:
        yield ConfigProblem("lora.alpha", "0 leaves the model as it is", "use more than 0, such as 16")
    if not lora.layers:
        yield ConfigProblem("lora.layers", "is empty, so nothing is trained", "use [attention.*, ffn.*]")


def check_mlp_widths(config: Config) -> Iterator[ConfigProblem]:
    """Check that every hidden layer of an MLP has a width."""
    if isinstance(config.model, MlpConfig) and any(width < 1 for width in config.model.hidden):
        yield ConfigProblem(
            "model.hidden", f"{list(config.model.hidden)} has a layer of width 0 or less", "use 1 or more for each"
        )


def check_data(config: Config) -> Iterator[ConfigProblem]:
    """Check that the model can read the data and its sequences."""
    model, data = config.model, config.data
    longest = model.seq_len if isinstance(model, DecoderConfig) else 0
    if data.kind == "tokens" and not longest:
        yield ConfigProblem(
            "data.kind", f"{model.family} does not read tokens", f"use synthetic, or a model of {LANGUAGE_MODELS}"
        )
    if data.kind == "images" and not isinstance(model, ResNetConfig):
        yield ConfigProblem("data.kind", f"{model.family} does not read images", "use synthetic, or a resnet model")
    if data.kind != "synthetic" and not data.path and not data.mixture:
        hint = "make shards with `python -m trainer prepare`" if data.kind == "tokens" else "one subfolder per class"
        yield ConfigProblem("data.path", f"is empty, but {data.kind} are read from a folder", f"set data.path ({hint})")
    if longest and data.seq_len > longest:
        fix = f"use at most {longest}, or raise model.seq_len"
        yield ConfigProblem("data.seq_len", f"{data.seq_len} is longer than the model's {longest}", fix)
    if data.seq_len and not longest:
        yield ConfigProblem("data.seq_len", f"{data.seq_len}, but {model.family} samples have no tokens", "set it to 0")
    yield from _check_documents(config)


def check_micro_batch(config: Config) -> Iterator[ConfigProblem]:
    """Check that the micro-batch divides the batch and is large enough for batch norm."""
    size, micro = config.batch.size, config.batch.micro
    if isinstance(micro, int) and size % micro:
        fix = (
            f"use a batch.size of {list_nearest_multiples(size, micro)}, or a batch.micro out of {list_divisors(size)}"
        )
        yield ConfigProblem("batch.micro", f"{micro} does not divide batch.size {size}", fix)
    # A single value per channel has no variance, so torch's batch norm refuses it.
    if isinstance(config.model, ResNetConfig) and micro == 1 and config.model.image_size <= 32:  # noqa: PLR2004
        message = f"1 sample of {config.model.image_size} pixels leaves a single value per channel for batch norm"
        yield ConfigProblem("batch.micro", message, "use 2 or more")


def check_rollback(config: Config) -> Iterator[ConfigProblem]:
    """Check that a rollback has more than one checkpoint to choose from."""
    if config.health.spike == "rollback" and config.checkpoint.every == "never":
        message = "never, but a loss spike rolls back to a checkpoint (health.spike=rollback)"
        yield ConfigProblem("checkpoint.every", message, "set it to a number, or health.spike to warn")
    if config.health.spike == "rollback" and config.checkpoint.keep == 1:
        message = "1, but the newest checkpoint may contain the update that caused the spike (health.spike=rollback)"
        yield ConfigProblem("checkpoint.keep", message, "use 2 or more")


def check_evaluation(config: Config) -> Iterator[ConfigProblem]:
    """Check that there is at most one evaluation set, and one if other settings need it."""
    evaluation, best = config.evaluation, config.checkpoint.best
    has_set = bool(evaluation.share or evaluation.path)
    ways = "set evaluation.share" + ("" if config.data.kind == "synthetic" else " or evaluation.path")
    if evaluation.share >= 1:
        yield ConfigProblem("evaluation.share", f"{evaluation.share:g} leaves nothing to train on", "use less than 1")
    if evaluation.share and evaluation.path:
        message = f"{evaluation.share:g}, but evaluation.path names another evaluation set"
        yield ConfigProblem("evaluation.share", message, "set only one of them")
    if evaluation.path and config.data.kind == "synthetic":
        message = f"{evaluation.path!r}, but synthetic data has no folder"
        yield ConfigProblem("evaluation.path", message, "set evaluation.share instead")
    if not has_set and evaluation != EvaluationConfig():
        yield ConfigProblem("evaluation", "has settings, but there is no evaluation set", ways)
    yield from _check_prompts(config)
    if best and not has_set:
        yield ConfigProblem("checkpoint.best", f"{best!r}, but there is no evaluation set", ways)
    if best and config.checkpoint.every == "never":
        yield ConfigProblem(
            "checkpoint.best", f"{best!r}, but checkpoint.every is never", "set checkpoint.every to a number"
        )
    if best == "perplexity" and not isinstance(config.model, DecoderConfig):
        message = f"{best!r}, but {config.model.family} is not a language model"
        yield ConfigProblem("checkpoint.best", message, "use loss or accuracy")


def check_optimizer(config: Config) -> Iterator[ConfigProblem]:
    """Check that moving averages of the optimizer decay."""
    for name in ("beta1", "beta2", "momentum", "muon_momentum"):
        value = getattr(config.optimizer, name)
        if value >= 1:
            yield ConfigProblem(f"optimizer.{name}", f"at {value:g} the moving average never decays", "use less than 1")
    yield from (entry for entry in parse_decay_groups(config.optimizer) if isinstance(entry, ConfigProblem))


def check_optimizer_layout(config: Config) -> Iterator[ConfigProblem]:
    """Check that the optimizer can update parameters that are spread or stored like this."""
    optimizer, parallel = config.optimizer, config.parallel
    problem = explain_no_tensor_parallel(optimizer)
    if problem is not None and parallel.tensor > 1:
        yield problem
    if optimizer.name == "muon" and parallel.offload:
        message = "muon multiplies matrices, which parallel.offload would leave to the host"
        yield ConfigProblem("optimizer.name", message, "use adamw, or set parallel.offload to false")


def check_schedule(config: Config) -> Iterator[ConfigProblem]:
    """Check that the learning-rate schedule has the phases it is named after."""
    schedule, steps = config.schedule, config.steps
    if schedule.kind == "inverse_sqrt" and not schedule.warmup:
        message = "0, but inverse_sqrt decays from the end of the warm-up"
        yield ConfigProblem("schedule.warmup", message, "use 1 or more, such as 1000")
    if schedule.kind != "wsd":
        return
    if not schedule.decay_share:
        yield ConfigProblem("schedule.decay_share", "0, but wsd ends with a decay", "use more than 0, or kind constant")
    decay = count_decay_steps(schedule, steps)
    if schedule.warmup + decay > steps:
        message = f"{schedule.decay_share:g} of {steps} steps is a decay of {decay}, "
        message += f"which does not fit after a warm-up of {schedule.warmup}"
        fix = "use a smaller schedule.decay_share or schedule.warmup, or more steps"
        yield ConfigProblem("schedule.decay_share", message, fix)


RULES: tuple[Rule, ...] = (
    check_names,
    check_project,
    check_heads,
    check_rope_scaling,
    check_experts,
    check_lora,
    check_mlp_widths,
    check_data,
    check_mixture,
    check_remote,
    check_micro_batch,
    check_optimizer,
    check_optimizer_layout,
    check_fp8,
    check_formats,
    check_batch_norm,
    check_schedule,
    check_effect,
    check_rollback,
    check_replay,
    check_evaluation,
    check_strategy_options,
    check_engine,
    check_compression,
    check_pattern,
    check_inner_steps,
    check_tensor_parallel,
    check_context_parallel,
    check_pipeline,
)
# An own model is checked when it is split (trainer/parallel/apply.py); its evaluation set is an argument.
_RULES_FOR_FAMILIES: tuple[Rule, ...] = (
    check_batch_norm,
    check_experts,
    check_evaluation,
    check_tensor_parallel,
    check_context_parallel,
    check_pipeline,
)


def _check_documents(config: Config) -> Iterator[ConfigProblem]:
    documents = config.data.documents
    if documents == "joined":
        return
    if not isinstance(config.model, DecoderConfig):
        message = f"{documents}, but {config.model.family} samples have no tokens"
        yield ConfigProblem("data.documents", message, f"set it to joined, or use a model of {LANGUAGE_MODELS}")
    elif documents == "packed" and config.data.kind == "synthetic":
        message = "packed, but synthetic samples are not made of whole documents"
        yield ConfigProblem("data.documents", message, "set it to separate, or data.kind to tokens")


def _check_prompts(config: Config) -> Iterator[ConfigProblem]:
    prompts = config.evaluation.prompts
    if prompts and config.data.kind != "tokens":
        message = f"are set, but {config.data.kind} data has no tokenizer"
        yield ConfigProblem("evaluation.prompts", message, "set data.kind to tokens, or leave them out")
    if not all(prompt.strip() for prompt in prompts):
        yield ConfigProblem("evaluation.prompts", "one of them is empty", "give each prompt at least a word")
    if len(set(prompts)) < len(prompts):
        yield ConfigProblem("evaluation.prompts", "one of them is there twice", "give each prompt once")
    if config.evaluation.prompt_tokens != EvaluationConfig().prompt_tokens and not prompts:
        message = f"{config.evaluation.prompt_tokens}, but there are no prompts"
        yield ConfigProblem("evaluation.prompt_tokens", message, "set evaluation.prompts, or leave it out")


def _check_batch_size(batch: BatchConfig, dp_size: int) -> list[ConfigProblem]:
    micro = 1 if batch.micro == "auto" else batch.micro
    each = dp_size * micro
    if batch.size % each == 0:
        return []
    divisor = f"{dp_size} data-parallel ranks" + (f" x batch.micro {micro} = {each}" if micro > 1 else "")
    fix = f"use {list_nearest_multiples(batch.size, each)}"
    if batch.size % micro == 0:
        fix += f", or a number of data-parallel ranks out of {list_divisors(batch.size // micro)}"
    return [ConfigProblem("batch.size", f"{batch.size} is not divisible by {divisor}", fix)]


def _check_micro_batches(batch: BatchConfig, parallel: ParallelConfig, dp_size: int) -> list[ConfigProblem]:
    """Check that a pipeline has at least as many micro-batches as ranks: with fewer, some ranks are always idle."""
    micro = 1 if batch.micro == "auto" else batch.micro
    count = batch.size // (dp_size * micro)
    if parallel.pipeline == 1 or count >= parallel.pipeline:
        return []
    message = f"{batch.size} is {count} micro-batches of {micro} on each of {dp_size} data-parallel ranks, "
    message += f"but the pipeline needs {parallel.pipeline}"
    return [ConfigProblem("batch.size", message, f"use {dp_size * micro * parallel.pipeline} or more, or fewer stages")]
