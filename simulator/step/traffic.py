"""Predict the seconds that communication between ranks adds to a step, for each dimension of the layout.

Every method returns only exposed time: what compute does not hide.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.collectives import Group, Op, collective_time_s, layout_groups
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import OWN_TRAINERS, Layout
from simulator.model import Transformer
from simulator.parameters import ParameterCounts, head_width
from simulator.step.kernels import Kernels
from simulator.trainers import trainer_behavior

SHARDED_GRADIENTS = 2
"""ZeRO stage that shards gradients."""
SHARDED_WEIGHTS = 3
"""ZeRO stage that also shards weights."""
DDP_OVERLAP_SHARE = 0.9
"""Share of backward that DDP can overlap with reductions: the last bucket is ready when backward ends."""
OVERLAPPED_TENSOR_EXCHANGES = 2
"""Backward exchanges of a layer between tensor-parallel ranks, which Megatron overlaps with weight gradients."""
EXPOSED_RING_SHARE = 0.1
"""Share of context-parallel communication that stays exposed even if attention takes longer."""
WEIGHT_BYTES = 2
"""Bytes of a gathered weight or an activation."""


@dataclass(frozen=True)
class _Exchange:
    """Seconds of the exchanges of a set of parameters between data-parallel ranks."""

    gather: float
    """All-gather of the weights."""
    reduce: float
    """Reduction of the gradients, within a shard group under HSDP."""
    sum_replicas: float
    """All-reduce of the gradients over the replicas of HSDP."""


class ExchangeTimes:
    """Communication times of one transformer on one system."""

    def __init__(
        self, model: Transformer, system: System, rates: Rates, held: ParameterCounts, kernels: Kernels
    ) -> None:
        self.model, self.system, self.rates, self.held, self.kernels = model, system, rates, held, kernels

    def tensor(self, layout: Layout) -> float:
        """Return the tensor-parallel exchanges of one layer and micro-batch."""
        if layout.tp == 1:
            return 0.0
        group = layout_groups.tensor_group(layout, self.system)
        size = WEIGHT_BYTES * self._tokens(layout) * self.model.hidden
        exchanges = 6.0 if layout.recompute == "full" else 4.0
        if layout.overlaps:
            exchanges *= 1 - self.rates.tensor_hidden
        elif layout.framework == "megatron":
            exchanges -= OVERLAPPED_TENSOR_EXCHANGES * self.rates.tensor_hidden
        if layout.sequence_parallel:
            return exchanges * (self._time("all_gather", size, group) + self._time("reduce_scatter", size, group))
        return exchanges * self._time("all_reduce", size, group)

    def context(self, layout: Layout, attention: float) -> float:
        """Return the exchange of keys and values of one layer and micro-batch.

        A ring overlaps `attention` seconds. Without one, attention waits for all keys, also when they are recomputed,
        and backward sums their gradients.
        """
        if layout.cp == 1:
            return 0.0
        size = 4 * self._tokens(layout) * self.model.kv_heads * head_width(self.model) / layout.tp * layout.cp
        group = layout_groups.context_group(layout, self.system)
        gather = self._time("all_gather", size, group)
        if layout.gathers_keys:
            gathers = 1 if layout.recompute == "none" else 2
            return gathers * gather + self._time("reduce_scatter", size, group)
        moved = 3 * gather
        return max(0.0, moved - attention) + EXPOSED_RING_SHARE * min(moved, attention)

    def experts(self, layout: Layout) -> float:
        """Return the dispatch of tokens to experts and back of one mixture layer and micro-batch, both passes."""
        experts = self.model.experts
        if layout.ep == 1 or experts is None:
            return 0.0
        group = layout_groups.expert_group(layout, self.system)
        destinations = _token_destinations(layout, group)
        if trainer_behavior(layout.trainer).routes_evenly:
            copies = max(1.0, experts.per_token * destinations / experts.count)
        else:
            copies = _expected_copies(experts.per_token, destinations)
        size = WEIGHT_BYTES * self._tokens(layout) * self.model.hidden * copies / layout.tp
        exchanges = 6 if layout.recompute == "full" else 4
        return exchanges * self.rates.dispatch * collective_time_s("all_to_all", size, group, self.system)

    def gather(self, layout: Layout, layers: float, forward: float, backward: float) -> float:
        """Return what ZeRO-3's gathers and reductions add to one micro-batch.

        `forward` and `backward` are the seconds of all `layers`.
        """
        if layout.zero != SHARDED_WEIGHTS:
            return 0.0
        layer = self._layer_exchange(layout)
        with_replicas = self._exposed_gathers(
            layout, layers, (forward, backward), layer.gather, layer.reduce + layer.sum_replicas
        )
        count = max(1, layout.micro_batches)
        if not layer.sum_replicas or count == 1 or layout.trainer not in OWN_TRAINERS or layout.pp > 1:
            return with_replicas
        # This project's trainer sums replicas only after the last micro-batch (trainer/parallel/fsdp.py).
        without_replicas = self._exposed_gathers(layout, layers, (forward, backward), layer.gather, layer.reduce)
        return without_replicas + (with_replicas - without_replicas) / count

    def gradients(self, layout: Layout, backward: float) -> float:
        """Return the part of the gradient reduction that `backward` of the last micro-batch does not hide."""
        if layout.zero == SHARDED_WEIGHTS or layout.dp * layout.cp == 1 or layout.adapters:
            return 0.0
        stage = self._stage_exchange(layout)
        if layout.framework == "torch":
            # Replicas are summed once, after the last reduction.
            earlier = _reductions_per_step(layout) - 1
            exposed = earlier * self._exposed_reduction(layout, stage.reduce, backward) if earlier else 0.0
            last = self._exposed_reduction(layout, stage.reduce + stage.sum_replicas, backward)
            return exposed + last + stage.gather
        reduce = stage.reduce + stage.sum_replicas
        hidden_share = self.rates.gradients_overlapped if layout.overlaps else self.rates.gradients_hidden
        hidden = min(reduce, backward) * hidden_share
        return reduce - hidden + stage.gather * (1 - hidden_share)

    def sends(self, layout: Layout, count: int) -> float:
        """Return the transfers of activations and their gradients between pipeline stages, over a step."""
        split = layout.tp if layout.sequence_parallel or layout.framework == "megatron" else 1
        size = WEIGHT_BYTES * self._tokens(layout) * self.model.hidden / split
        send = self._time("send", size, layout_groups.pipeline_group(layout, self.system))
        if not layout.overlaps:
            send += 1e-3 * self.rates.handover_ms
        return 2 * send * (count + layout.pp - 1) * layout.virtual_stages

    def parameters_on_rank(self, layout: Layout) -> float:
        """Return the parameters of one rank of the fullest stage before ZeRO shards them."""
        return sum(self._stage_parameters(layout))

    def _exposed_gathers(
        self, layout: Layout, layers: float, work: tuple[float, float], gather: float, reduce: float
    ) -> float:
        """Return the exposed time of a micro-batch, given the seconds to gather and to reduce one layer."""
        forward, backward = work
        overlapping = 1 - self.rates.gather_shown if layout.framework == "deepspeed" else 1.0
        layer_forward, layer_backward = overlapping * forward / layers, overlapping * backward / layers
        exposed = max(0.0, gather - layer_forward) + max(0.0, gather + reduce - layer_backward)
        hidden = min(gather, layer_forward) + min(gather + reduce, layer_backward)
        copied = 3 * self.kernels.moved(4 * sum(self._layer_parameters(layout)))
        first_and_last = gather + reduce + self._vocabulary_exchange(layout)
        return first_and_last + layers * (exposed + self.rates.slowed * hidden + copied)

    def _exposed_reduction(self, layout: Layout, reduce: float, backward: float) -> float:
        """Return the exposed part of a reduction in buckets, and the slowdown that its hidden part causes."""
        size = layout.gradient_bytes * layout.compression * self.parameters_on_rank(layout)
        bucket = min(size, layout.bucket_mb * 2**20)
        last_bucket = self._time("all_reduce", bucket, layout_groups.data_group(layout, self.system))
        exposed = max(last_bucket, reduce - DDP_OVERLAP_SHARE * backward)
        # A CPU that sends does not compute, so all of the reduction slows the other ranks.
        slowing = max(0.0, reduce - exposed) if self.system.gpu.launches_ahead else reduce
        return exposed + self.rates.slowed * slowing

    def _stage_exchange(self, layout: Layout) -> _Exchange:
        """Return the exchanges of all parameters of a rank, for ZeRO stages that keep weights whole."""
        replicated, routed = self._stage_parameters(layout)
        gradient = layout.gradient_bytes * layout.compression
        shard, expert = self._data_groups(layout)
        if layout.zero == 0:
            reduce = self._pair("all_reduce", gradient * replicated, shard, gradient * routed, expert)
            return _Exchange(gather=0.0, reduce=reduce, sum_replicas=0.0)
        reduce = self._pair("reduce_scatter", gradient * replicated, shard, gradient * routed, expert)
        replicas, sum_replicas = layout_groups.replica_group(layout, self.system), 0.0
        if replicas.ranks > 1:
            sum_replicas = self._time("all_reduce", gradient * replicated / shard.ranks, replicas)
        if trainer_behavior(layout.trainer).broadcasts_parts:
            gather = shard.ranks * self._time("broadcast", WEIGHT_BYTES * replicated / shard.ranks, shard)
            gather += expert.ranks * self._time("broadcast", WEIGHT_BYTES * routed / expert.ranks, expert)
        else:
            gather = self._pair("all_gather", WEIGHT_BYTES * replicated, shard, WEIGHT_BYTES * routed, expert)
        return _Exchange(gather, reduce, sum_replicas)

    def _layer_exchange(self, layout: Layout) -> _Exchange:
        """Return the exchanges of one layer under ZeRO-3."""
        shard, expert = self._data_groups(layout)
        replicated, routed = self._layer_parameters(layout)
        gather = self._pair("all_gather", WEIGHT_BYTES * replicated, shard, WEIGHT_BYTES * routed, expert)
        if layout.adapters:
            return _Exchange(gather, reduce=0.0, sum_replicas=0.0)
        gradient = layout.gradient_bytes
        reduce = self._pair("reduce_scatter", gradient * replicated, shard, gradient * routed, expert)
        replicas = layout_groups.replica_group(layout, self.system)
        if replicas.ranks == 1:
            return _Exchange(gather, reduce, sum_replicas=0.0)
        sum_replicas = self._time("all_reduce", gradient * (replicated + routed) / shard.ranks, replicas)
        return _Exchange(gather, reduce, sum_replicas)

    def _vocabulary_exchange(self, layout: Layout) -> float:
        shard = layout_groups.data_group(layout, self.system)
        size = (self.held.embedding + self.held.head) / layout.tp
        gather = self._time("all_gather", WEIGHT_BYTES * size, shard)
        return gather + self._time("reduce_scatter", layout.gradient_bytes * size, shard)

    def _stage_parameters(self, layout: Layout) -> tuple[float, float]:
        """Return the parameters of a rank that all data-parallel ranks hold, and those of its own experts."""
        held = self.held
        layers, mixtures = held.layers / layout.pp, held.mixtures / layout.pp
        dense = layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared
        routed = mixtures * held.experts * held.expert / layout.ep
        ends = (held.embedding + held.head) if layout.pp == 1 else max(held.embedding, held.head)
        return (dense + ends) / layout.tp, routed / layout.tp

    def _layer_parameters(self, layout: Layout) -> tuple[float, float]:
        """Return the same split of an average layer, before ZeRO-3 shards it."""
        held = self.held
        feed_forward = ((held.layers - held.mixtures) * held.dense + held.mixtures * held.shared) / held.layers
        routed = held.mixtures * held.experts * held.expert / held.layers / layout.ep
        return (held.attention + feed_forward) / layout.tp, routed / layout.tp

    def _data_groups(self, layout: Layout) -> tuple[Group, Group]:
        """Return the groups that exchange replicated parameters and experts."""
        return (
            layout_groups.data_group(layout, self.system),
            layout_groups.expert_data_group(layout, self.system),
        )

    def _pair(self, op: Op, size: float, group: Group, expert_size: float, expert_group: Group) -> float:
        """Return the time of an exchange of replicated parameters followed by one of experts."""
        return self._time(op, size, group) + self._time(op, expert_size, expert_group)

    def _tokens(self, layout: Layout) -> float:
        return layout.micro_batch * self.model.seq / layout.cp

    def _time(self, op: Op, size: float, group: Group) -> float:
        return self.rates.links * collective_time_s(op, size, group, self.system)


def _reductions_per_step(layout: Layout) -> int:
    """Return how often gradients are reduced in a step.

    This project's trainer scatters sharded gradients after every micro-batch (trainer/parallel/fsdp.py), except in a
    pipeline.
    """
    after_each = layout.trainer in OWN_TRAINERS and layout.zero == SHARDED_GRADIENTS and layout.pp == 1
    return max(1, layout.micro_batches) if after_each else 1


def _token_destinations(layout: Layout, group: Group) -> int:
    """Return the places that receive a token at most once: nodes, or within a node its ranks if deduplicated."""
    nodes = group.ranks // group.per_node
    return nodes if nodes > 1 else (group.ranks if layout.deduplicates else 1)


def _expected_copies(per_token: int, destinations: int) -> float:
    """Return the expected copies of a token: one per destination with an expert for it, or one per expert."""
    if destinations == 1:
        return float(per_token)
    return min(float(per_token), destinations * (1 - (1 - 1 / destinations) ** per_token))
