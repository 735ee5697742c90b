"""The settings that decide how a model is spread, run and compiled; handed to every engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.config.layout import Layout
from trainer.config.schema import CompileConfig, ParallelConfig, Precision


@dataclass(frozen=True)
class Recipe:
    parallel: ParallelConfig
    precision: Precision = "fp32"
    compiled: CompileConfig = field(default_factory=CompileConfig)

    def is_sharded(self, layout: Layout) -> bool:
        """Whether fully_shard spreads the model. Tensor parallel parts are DTensors, which DDP does not take."""
        return self.parallel.strategy in ("fsdp", "hsdp") or layout.tensor > 1

    def compiles_blocks(self, layout: Layout) -> bool:
        """Where engines work between the blocks, the model cannot be one graph."""
        is_cut = self.is_sharded(layout) or layout.pipeline > 1
        return self.compiled.mode == "blocks" or (self.compiled.mode == "whole" and is_cut)
