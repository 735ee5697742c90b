"""The trainer's settings that realise a layout, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from simulator.layout import Layout
from simulator.model import Transformer
from simulator.models import NamedModel
from trainer.config import load
from trainer.config.check import check, check_world
from trainer.config.errors import ConfigError
from trainer.config.yaml_text import dump_yaml

WARM_UP = 0.02
"""Share of the steps, where no preset says how many, or so many that the run would hardly do anything else."""
LONGEST_WARM_UP = 0.25


@dataclass(frozen=True)
class Job:
    """What a run is besides its layout."""

    named: NamedModel
    tokens: float
    checkpoint_every: int

    def steps(self, layout: Layout) -> int:
        return ceil(self.tokens / (layout.global_batch * self.named.model.seq))


def unsupported(model: Transformer, layout: Layout) -> str:
    """Why the trainer cannot do it, in a few words; empty where it can."""
    if model.experts or model.latent:
        return "the trainer has no such model"
    if layout.cp > 1:
        return "the trainer has no context parallelism"
    if model.tied and layout.pp > 1:
        return "the trainer cuts no model with tied embeddings into stages"
    if not model.gated and (model.kv_heads != model.heads or model.ffn != 4 * model.hidden):
        return "the trainer has no such feed-forward part"
    if model.head_width and model.head_width * model.heads != model.hidden:
        return "the trainer has no such heads"
    return ""


def settings(job: Job, layout: Layout) -> dict[str, Any]:
    """As in a YAML file: only what differs from the preset that it builds on."""
    steps = job.steps(layout)
    tree: dict[str, Any] = {
        "name": f"{job.named.name}-{layout.gpus}gpus".replace("_", "-"),
        "steps": steps,
        "batch": {"size": layout.global_batch, "micro": layout.micro_batch},
        "precision": layout.dtype,
        "parallel": parallel(layout),
        "compile": {"mode": "blocks" if layout.compiled else "none"},
        "checkpoint": {"every": min(job.checkpoint_every, steps)},
    }
    preset = job.named.preset
    if preset is None or preset.schedule.warmup > LONGEST_WARM_UP * steps:
        tree["schedule"] = {"warmup": ceil(WARM_UP * steps)}
    return {"base": job.named.name, **tree} if preset else {**tree, "model": _model(job.named.model)}


def problems(tree: dict[str, Any], layout: Layout, gpus_per_node: int) -> list[str]:
    """What the trainer itself says against these settings on these ranks."""
    try:
        config = load.from_dict(resolved(tree))
    except ConfigError as bad:
        return [str(problem) for problem in bad.problems]
    found = check(config) or check_world(config, layout.gpus, min(gpus_per_node, layout.gpus))
    return [str(problem) for problem in found]


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """Without `base`, as the trainer sees it."""
    if "base" not in tree:
        return tree
    below = load.to_dict(load.load(tree["base"], []))
    for key, value in tree.items():
        if key != "base":
            below[key] = {**below[key], **value} if isinstance(value, dict) else value
    return below


def text(tree: dict[str, Any], comment: str) -> str:
    return f"# {comment}\n# Data of your own: data.kind=tokens data.path=FOLDER.\n{dump_yaml(tree)}"


def parallel(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = {"strategy": _strategy(layout), "recompute": layout.recompute}
    if layout.zero:
        found["zero"] = layout.zero
    found["shard"] = layout.shard
    found |= {"tensor": layout.tp, "pipeline": layout.pp, "schedule": layout.schedule}
    if layout.virtual_stages > 1:
        found["virtual_stages"] = layout.virtual_stages
    return found


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
        return {"family": "llama", **sizes, "kv_heads": model.kv_heads, "ffn": model.ffn}
    return {"family": "gpt2", **sizes}
