"""A trainer's settings as the simulator's model and layout: the same work for every rank, however many there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.layout import Layout
from simulator.model import Model
from simulator.models import build_model
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config
from trainer.models.shape import shape_of


@dataclass(frozen=True)
class Job:
    config: Config
    micro: int
    share: int
    """Samples of one rank in one step."""

    @cached_property
    def model(self) -> Model:
        return build_model(self.config.model, self.config.data.seq_len)

    @property
    def unit(self) -> str:
        return shape_of(self.config.model).unit

    def units(self, ranks: int) -> int:
        """Tokens, images or samples of one step."""
        seq_len = self.config.data.seq_len or shape_of(self.config.model).seq_len
        return ranks * self.share * max(1, seq_len)

    def layout(self, ranks: int) -> Layout:
        config = self.config
        return Layout(
            dp=ranks,
            micro_batch=self.micro,
            global_batch=ranks * self.share,
            recompute=config.parallel.recompute,
            dtype=config.precision,
            compiled=config.compile.mode != "none",
            bucket_mb=config.parallel.bucket_mb,
        )

    def shared_by(self, ranks: int, batch: int) -> Job | None:
        """With `batch` samples split over `ranks`, micro-batches no larger than now; None where they do not divide."""
        if batch % ranks:
            return None
        share = batch // ranks
        micro = next(size for size in range(min(self.micro, share), 0, -1) if share % size == 0)
        return Job(self.config, micro, share)


def layout_from_config(config: Config, ranks: int, per_node: int, micro: int) -> Layout:
    """ConfigError where so many ranks cannot be arranged as the settings ask."""
    asked = config.parallel
    axes = resolve_layout(asked, ranks, per_node)
    sharded = asked.strategy in ("fsdp", "hsdp")
    return Layout(
        dp=axes.dp_size,
        tp=axes.tensor,
        pp=axes.pipeline,
        virtual_stages=asked.virtual_stages if axes.pipeline > 1 and asked.schedule == "interleaved" else 1,
        schedule=asked.schedule,
        micro_batch=micro,
        global_batch=config.batch.size,
        zero=asked.zero if sharded else 0,
        shard=axes.shard if asked.strategy == "hsdp" else 0,
        sequence_parallel=axes.tensor > 1,
        recompute=asked.recompute,
        dtype=config.precision,
        offload=asked.offload,
        compiled=config.compile.mode != "none",
        prefetch=asked.prefetch,
        bucket_mb=asked.bucket_mb,
    )
