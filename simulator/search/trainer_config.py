"""The trainer's settings for a layout, or why the trainer cannot run it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from simulator.layout import Layout
from simulator.model import Transformer
from simulator.models import NamedModel
from simulator.step.kernels import non_fp8_dtype
from trainer.config import load
from trainer.config.check import check, check_world
from trainer.config.errors import ConfigError
from trainer.config.yaml_text import dump_yaml

WARM_UP_SHARE = 0.02
"""Share of the steps for warm-up without a preset, or if the preset's warm-up takes too much of the run."""
MAX_WARM_UP_SHARE = 0.25
FP32_BYTES = 4


@dataclass(frozen=True)
class PlannedRun:
    """A run apart from its layout."""

    named: NamedModel
    tokens: float
    checkpoint_every: int

    def steps(self, layout: Layout) -> int:
        return ceil(self.tokens / (layout.global_batch * self.named.model.seq))


def unsupported_reason(model: Transformer, layout: Layout) -> str:
    """Return why the trainer cannot run a layout; empty if it can."""
    experts = model.experts
    is_other_mixture = experts is not None and (experts.shared > 0 or experts.dense_layers > 0)
    is_other_ffn = model.kv_heads != model.heads or model.ffn != 4 * model.hidden
    reasons = {
        "the trainer does not support this model": model.latent is not None or is_other_mixture,
        "the trainer splits experts by tensor or by expert parallelism, not by both": layout.ep > 1 and layout.tp > 1,
        "the plan has no settings for context parallelism (parallel.context of the trainer)": layout.cp > 1,
        "the trainer does not split models with tied embeddings into stages": model.tied and layout.pp > 1,
        "the trainer does not sum gradients in bf16 over the micro-batches of sharded pipeline stages": (
            layout.gradient_bytes < layout.summed_gradient_bytes and layout.zero > 0 and layout.pp > 1
        ),
        "the trainer's ddp stores gradients in the format of the weights": (
            layout.summed_gradient_bytes != layout.weight_bytes
            and layout.zero == 0
            and layout.dp * layout.cp > 1
            and layout.tp == 1
        ),
        "the trainer does not support this feed-forward layer": not model.gated and is_other_ffn,
        "the trainer does not support these attention heads": not model.gated
        and model.head_width * model.heads not in (0, model.hidden),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def build_settings(run: PlannedRun, layout: Layout) -> dict[str, Any]:
    """Return the settings as in a YAML file: only what differs from the preset that they are based on."""
    steps = run.steps(layout)
    tree: dict[str, Any] = {
        "name": f"{run.named.name}-{layout.gpus}gpus".replace("_", "-"),
        "steps": steps,
        "batch": {"size": layout.global_batch, "micro": layout.micro_batch},
        "precision": non_fp8_dtype(layout.dtype),
        "parallel": parallel_settings(layout),
        "compile": {"mode": "blocks" if layout.compiled else "none"},
        "checkpoint": {"every": min(run.checkpoint_every, steps)},
    }
    preset = run.named.preset
    if preset is None or preset.schedule.warmup > MAX_WARM_UP_SHARE * steps:
        tree["schedule"] = {"warmup": ceil(WARM_UP_SHARE * steps)}
    return {"base": run.named.name, **tree} if preset else {**tree, "model": _model(run.named.model)}


def list_problems(tree: dict[str, Any], layout: Layout, gpus_per_node: int) -> list[str]:
    """Return what the trainer itself would report about these settings on these ranks."""
    try:
        config = load.from_dict(merge_base(tree))
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    problems = check(config) or check_world(config, layout.gpus, min(gpus_per_node, layout.gpus))
    return [str(problem) for problem in problems]


def merge_base(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the settings merged into their `base`, as the trainer sees them."""
    if "base" not in tree:
        return tree
    merged = load.to_dict(load.load(tree["base"], []))
    for key, value in tree.items():
        if key != "base":
            merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    return merged


def render_yaml(tree: dict[str, Any], comment: str) -> str:
    """Return the settings as a YAML file with a comment on top."""
    return f"# {comment}\n# Your own data: data.kind=tokens data.path=FOLDER.\n{dump_yaml(tree)}"


def parallel_settings(layout: Layout) -> dict[str, Any]:
    """Return the `parallel` section of the settings for a layout."""
    settings: dict[str, Any] = {"strategy": _strategy(layout), "recompute": layout.recompute}
    if layout.zero:
        settings["zero"] = layout.zero
    settings["shard"] = layout.shard
    if layout.ep > 1:
        settings["expert"] = layout.ep
    settings |= {"tensor": layout.tp, "pipeline": layout.pp, "schedule": layout.schedule}
    if layout.virtual_stages > 1:
        settings["virtual_stages"] = layout.virtual_stages
    if layout.dp * layout.cp == 1 and layout.gradient_bytes < FP32_BYTES:
        # There is nothing to sum, and the trainer rejects a format for it.
        settings["reduce"] = "fp32"
    return settings


def _strategy(layout: Layout) -> str:
    if layout.dp == 1:
        return "single"
    if layout.zero == 0:
        return "ddp"
    return "hsdp" if layout.shard else "fsdp"


def _model(model: Transformer) -> dict[str, Any]:
    sizes = {"vocab_size": model.vocab, "dim": model.hidden, "layers": model.layers, "heads": model.heads}
    sizes |= {"seq_len": model.seq, "tie_embeddings": model.tied}
    if model.gated:
        heads = {"kv_heads": model.kv_heads, "head_dim": model.head_width}
        if model.experts:
            experts = {"experts": model.experts.count, "top_k": model.experts.per_token}
            return {"family": "mixtral", **sizes, **heads, "ffn": model.experts.ffn, **experts}
        return {"family": "llama", **sizes, **heads, "ffn": model.ffn}
    return {"family": "gpt2", **sizes}
