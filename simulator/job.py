"""Translate the trainer's settings into the simulator's model and layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from simulator.layout import Layout
from simulator.model import Model
from simulator.models import build_model
from simulator.parameters import moment_bytes
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config, LossConfig
from trainer.models.shape import shape_of
from trainer.state_formats import count_master_bytes, list_state_formats

DEFAULT_LAYOUT = Layout(
    moment_bytes=8.0,
    stored_gradient_bytes=4,
    loss="in_head",
    chunk_tokens=LossConfig().chunk_tokens,
    gathers_keys=True,
)
"""What `base_layout` returns for default settings, in bf16 without compilation."""


@dataclass(frozen=True)
class Job:
    """A data-parallel run of the trainer with the same work on every rank, for any number of ranks."""

    config: Config
    micro: int
    """Samples of a micro-batch."""
    share: int
    """Samples that each rank processes per step."""

    @cached_property
    def model(self) -> Model:
        return build_model(self.config.model, self.config.data.seq_len)

    @property
    def unit(self) -> str:
        return shape_of(self.config.model).unit

    def units(self, ranks: int) -> int:
        """Return the tokens, images or samples of one step."""
        seq_len = self.config.data.seq_len or shape_of(self.config.model).seq_len
        return ranks * self.share * max(1, seq_len)

    def layout(self, ranks: int) -> Layout:
        return replace(base_layout(self.config), dp=ranks, micro_batch=self.micro, global_batch=ranks * self.share)

    def shared_by(self, ranks: int, batch: int) -> Job | None:
        """Return the job with `batch` samples split over `ranks`, or None if they do not divide evenly.

        Micro-batches do not grow.
        """
        if batch % ranks:
            return None
        share = batch // ranks
        micro = next(size for size in range(min(self.micro, share), 0, -1) if share % size == 0)
        return Job(self.config, micro, share)


def layout_from_config(config: Config, ranks: int, per_node: int, micro: int) -> Layout:
    """Return the layout that the trainer would use; raise ConfigError if the settings do not suit this many ranks."""
    parallel = config.parallel
    axes = resolve_layout(parallel, ranks, per_node)
    sharded = parallel.strategy in ("fsdp", "hsdp")
    return replace(
        base_layout(config),
        dp=axes.dp_size,
        tp=axes.tensor,
        pp=axes.pipeline,
        cp=axes.context,
        ep=axes.expert,
        virtual_stages=parallel.virtual_stages if axes.pipeline > 1 and parallel.schedule == "interleaved" else 1,
        schedule=parallel.schedule,
        micro_batch=micro,
        global_batch=config.batch.size,
        zero=parallel.zero if sharded else 0,
        shard=axes.shard * axes.context if parallel.strategy == "hsdp" else 0,
        sequence_parallel=axes.tensor > 1,
        offload=parallel.offload,
    )


def base_layout(config: Config) -> Layout:
    """Return what the settings decide apart from the division over ranks: formats, kernels, loss and buffers."""
    formats = list_state_formats(config)
    return Layout(
        recompute=config.parallel.recompute,
        dtype=config.precision if config.fp8.scaling == "none" else "fp8",
        compiled=config.compile.mode != "none",
        prefetch=config.parallel.prefetch,
        bucket_mb=config.parallel.bucket_mb,
        weight_bytes=formats.weight_bytes,
        master_bytes=count_master_bytes(config.optimizer, 1),
        stored_gradient_bytes=formats.gradient_bytes,
        gradient_bytes=formats.reduced_bytes,
        moment_bytes=moment_bytes(build_model(config.model, config.data.seq_len), config.optimizer),
        loss="in_head",
        chunk_tokens=config.loss.chunk_tokens,
        gathers_keys=True,
    )
