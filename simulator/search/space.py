"""The search space: all layouts of a model on a number of GPUs, except those that are certainly not the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.collectives.layout_groups import fast_domain_gpus
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import Layout, Recompute
from simulator.model import Transformer

Zero = Literal[0, 1, 2, 3]
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
VIRTUAL_STAGES = (1, 2, 4)
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
MIN_CONTEXT_TOKENS = 4096
"""Tokens of a sequence per rank below which context parallelism costs more communication than it saves."""
MAX_STAGES = 32


@dataclass(frozen=True)
class Batch:
    """Smallest and largest number of samples of a step; in between, more is never slower per sample."""

    least: int
    most: int

    def largest_multiple(self, factor: int) -> int:
        """Return the largest allowed multiple of `factor`, or 0."""
        size = self.most // factor * factor
        return size if size >= self.least else 0


@dataclass(frozen=True, slots=True)
class Shape:
    """How the ranks are divided, before micro-batches and sharding."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int


@dataclass(frozen=True, slots=True)
class Passes:
    """How a batch goes through the pipeline stages."""

    micro: int
    batch: int
    virtual: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Settings that the user fixed; 0 is free to choose."""

    tp: int = 0
    pp: int = 0
    micro: int = 0
    recompute: Recompute = "none"
    """The least recomputing that is allowed."""
    compiled: bool = True


@dataclass
class Counts:
    """Numbers of layouts that a search considered and timed."""

    considered: int = 0
    """Layouts that were timed or ruled out."""
    timed: int = 0


@dataclass(frozen=True)
class Space:
    """All layouts of one model on one number of machines."""

    model: Transformer
    system: System
    batch: Batch
    counts: Counts = field(default_factory=Counts)
    fixed: Fixed = Fixed()
    rates: Rates | None = None
    """Rates as measured on these machines; None uses those fitted to published runs."""
    base: Layout = field(default_factory=Layout)
    """What all layouts share: formats, kernels and the loss."""

    def shapes(self) -> Iterator[Shape]:
        for tp in self._tensor():
            for pp in self._stages(self.system.gpus // tp):
                ranks = self.system.gpus // (tp * pp)
                for cp in self._context(ranks):
                    for ep in self._experts(ranks):
                        yield Shape(ranks // cp, tp, pp, cp, ep)

    def shardings(self, shape: Shape) -> Iterator[tuple[Zero, int]]:
        """Yield ZeRO stages with the number of ranks that share; 0 is all ranks."""
        ranks = shape.dp * shape.cp
        if ranks == 1:
            yield 0, 0
            return
        yield from ((0, 0), (1, 0), (2, 0), (3, 0))
        inside = self.system.gpus_per_node // shape.tp
        if 1 < inside < ranks and ranks % inside == 0:
            yield 3, inside

    def micros(self, shape: Shape) -> Iterator[list[Passes]]:
        """Yield passes from the smallest micro-batch on; a pipeline has at least as many micro-batches as stages."""
        for micro in (self.fixed.micro,) if self.fixed.micro else MICRO_BATCHES:
            batch = self.batch.largest_multiple(shape.dp * micro)
            count = batch // (shape.dp * micro)
            if batch and count >= shape.pp:
                yield [Passes(micro, batch, virtual) for virtual in self._virtual(shape, count)]

    def recompute(self) -> tuple[Recompute, ...]:
        """Return the allowed recompute settings, from the least on."""
        return RECOMPUTE[RECOMPUTE.index(self.fixed.recompute) :]

    def layout(self, shape: Shape, sharding: tuple[Zero, int], passes: Passes, recompute: Recompute) -> Layout:
        return replace(
            self.base,
            dp=shape.dp,
            tp=shape.tp,
            pp=shape.pp,
            cp=shape.cp,
            ep=shape.ep,
            virtual_stages=passes.virtual,
            schedule="interleaved" if passes.virtual > 1 else "1f1b",
            micro_batch=passes.micro,
            global_batch=passes.batch,
            zero=sharding[0],
            shard=sharding[1],
            sequence_parallel=shape.tp > 1,
            recompute=recompute,
            compiled=self.fixed.compiled,
        )

    def _virtual(self, shape: Shape, micro_batches: int) -> Iterator[int]:
        for stages in VIRTUAL_STAGES if shape.pp > 1 else VIRTUAL_STAGES[:1]:
            even = self._equal(shape.pp * stages) and micro_batches % shape.pp == 0
            if stages == 1 or even:
                yield stages

    def _tensor(self) -> Iterator[int]:
        """Yield tensor-parallel sizes within a node that divide the model's dimensions."""
        model, most = self.model, fast_domain_gpus(self.system)
        inner = model.experts.ffn if model.experts else model.ffn
        parts = (model.heads, model.kv_heads, inner, model.seq, self.system.gpus)
        for tp in _divisors(most):
            if self.fixed.tp in (0, tp) and not any(part % tp for part in parts):
                yield tp

    def _stages(self, ranks: int) -> Iterator[int]:
        for pp in _divisors(ranks):
            if self.fixed.pp in (0, pp) and pp <= MAX_STAGES and self._equal(pp):
                yield pp

    def _equal(self, stages: int) -> bool:
        """Return whether stages are equal, possibly with embedding and head counted as a layer each."""
        layers = self.model.layers
        return stages <= layers and (layers % stages == 0 or (layers + 2) % stages == 0)

    def _context(self, ranks: int) -> Iterator[int]:
        for cp in _divisors(ranks):
            if cp == 1 or (self.model.seq % cp == 0 and self.model.seq // cp >= MIN_CONTEXT_TOKENS):
                yield cp

    def _experts(self, ranks: int) -> Iterator[int]:
        experts = self.model.experts
        if experts is None:
            yield 1
            return
        yield from (ep for ep in _divisors(ranks) if experts.count % ep == 0)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
