"""Seconds that exchanges between ranks add to a step, by the direction of the layout that they serve."""

from __future__ import annotations

from simulator.collectives import Group, Op, collective_time_s, layout_groups
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import OWN_TRAINERS, Layout
from simulator.model import Transformer
from simulator.parameters import ParameterCounts, head_width
from simulator.step.kernels import Kernels
from simulator.trainers import trainer_behavior

SPLIT_GRADIENTS = 2
"""ZeRO stage that splits the gradients; the next splits the weights too."""
SHARDED = 3
"""ZeRO stage that splits the weights too."""
BEHIND_BACKWARD = 0.9
"""Share of backward that DDP can reduce behind: the last bucket is ready when it ends."""
BACKWARD = 2
"""Exchanges of a layer's gradients between tensor ranks, which megatron sends behind the products for the weights."""
RING_SHOWN = 0.1
"""Share of context exchanges that shows although attention takes longer."""


class ExchangeTimes:
    def __init__(
        self, model: Transformer, system: System, rates: Rates, held: ParameterCounts, kernels: Kernels
    ) -> None:
        self.model, self.system, self.rates, self.held, self.kernels = model, system, rates, held, kernels

    def tensor(self, layout: Layout) -> float:
        """Of one layer and micro-batch."""
        if layout.tp == 1:
            return 0.0
        group = layout_groups.tensor_group(layout, self.system)
        size = 2 * self._tokens(layout) * self.model.hidden
        times = 6.0 if layout.recompute == "full" else 4.0
        if layout.overlaps:
            times *= 1 - self.rates.tensor_hidden
        elif layout.framework == "megatron":
            times -= BACKWARD * self.rates.tensor_hidden
        if layout.sequence_parallel:
            return times * (self._time("all_gather", size, group) + self._time("reduce_scatter", size, group))
        return times * self._time("all_reduce", size, group)

    def context(self, layout: Layout, attention: float) -> float:
        """Of one layer and micro-batch: keys and values travel while attention works."""
        if layout.cp == 1:
            return 0.0
        size = 4 * self._tokens(layout) * self.model.kv_heads * head_width(self.model) / layout.tp * layout.cp
        moved = 3 * self._time("all_gather", size, layout_groups.context_group(layout, self.system))
        return max(0.0, moved - attention) + RING_SHOWN * min(moved, attention)

    def experts(self, layout: Layout) -> float:
        """Of one mixture layer and micro-batch: to the experts and back, forward and backward."""
        experts = self.model.experts
        if layout.ep == 1 or experts is None:
            return 0.0
        group = layout_groups.expert_group(layout, self.system)
        places = _places(layout, group)
        if trainer_behavior(layout.trainer).routes_evenly:
            copies = max(1.0, experts.per_token * places / experts.count)
        else:
            copies = _copies(experts.per_token, places)
        size = 2 * self._tokens(layout) * self.model.hidden * copies / layout.tp
        times = 6 if layout.recompute == "full" else 4
        return times * self.rates.dispatch * collective_time_s("all_to_all", size, group, self.system)

    def gather(self, layout: Layout, layers: float, forward: float, backward: float) -> float:
        """What weights and gradients on the way add to one micro-batch under ZeRO-3; the seconds are of all layers."""
        if layout.zero != SHARDED:
            return 0.0
        gather, reduce, summed = self._layer_exchange(layout)
        every = self._gathered(layout, layers, (forward, backward), gather, reduce + summed)
        count = max(1, layout.micro_batches)
        if not summed or count == 1 or layout.trainer not in OWN_TRAINERS or layout.pp > 1:
            return every
        # Ours sums replicas after the last micro-batch (its parallel/fsdp.py).
        usual = self._gathered(layout, layers, (forward, backward), gather, reduce)
        return usual + (every - usual) / count

    def _gathered(
        self, layout: Layout, layers: float, work: tuple[float, float], gather: float, reduce: float
    ) -> float:
        """Of one micro-batch, where a layer is gathered and its gradients are reduced in so many seconds."""
        forward, backward = work
        behind = 1 - self.rates.gather_shown if layout.framework == "deepspeed" else 1.0
        one_forward, one_backward = behind * forward / layers, behind * backward / layers
        shown = max(0.0, gather - one_forward) + max(0.0, gather + reduce - one_backward)
        hidden = min(gather, one_forward) + min(gather + reduce, one_backward)
        copied = 3 * self.kernels.moved(4 * sum(self._layer_parameters(layout)))
        ends = gather + reduce + self._vocabulary_exchange(layout)
        return ends + layers * (shown + self.rates.slowed * hidden + copied)

    def gradients(self, layout: Layout, backward: float) -> float:
        """What is left of their reduction after `backward` of the last micro-batch, or of each that reduces."""
        if layout.zero == SHARDED or layout.dp * layout.cp == 1 or layout.adapters:
            return 0.0
        reduce, summed, gather = self._reduced(layout)
        if layout.framework == "torch":
            # Replicas are summed once, after the last of the reductions.
            before = _reductions(layout) - 1
            shown = before * self._shown(layout, reduce, backward) if before else 0.0
            return shown + self._shown(layout, reduce + summed, backward) + gather
        reduce += summed
        share = self.rates.gradients_overlapped if layout.overlaps else self.rates.gradients_hidden
        hidden = min(reduce, backward) * share
        return reduce - hidden + gather * (1 - share)

    def sends(self, layout: Layout, count: int) -> float:
        """Activations and their gradients between stages, over a step."""
        split = layout.tp if layout.sequence_parallel or layout.framework == "megatron" else 1
        size = 2 * self._tokens(layout) * self.model.hidden / split
        each = self._time("send", size, layout_groups.pipeline_group(layout, self.system))
        if not layout.overlaps:
            each += 1e-3 * self.rates.handover_ms
        return 2 * each * (count + layout.pp - 1) * layout.virtual_stages

    def parameters_on_rank(self, layout: Layout) -> float:
        """Parameters of one rank of the fullest stage before ZeRO splits them."""
        return sum(self._stage_parameters(layout))

    def _shown(self, layout: Layout, reduce: float, backward: float) -> float:
        """What is left of one reduction behind `backward`, in buckets."""
        size = layout.gradient_bytes * layout.compression * self.parameters_on_rank(layout)
        last = self._time(
            "all_reduce", min(size, layout.bucket_mb * 2**20), layout_groups.data_group(layout, self.system)
        )
        shown = max(last, reduce - BEHIND_BACKWARD * backward)
        # A processor that sends does not compute: there other ranks are slowed by what this one shows, too.
        beside = max(0.0, reduce - shown) if self.system.gpu.launches_ahead else reduce
        return shown + self.rates.slowed * beside

    def _reduced(self, layout: Layout) -> tuple[float, float, float]:
        """Reducing all gradients of a rank, summing them over replicas, gathering weights that others updated."""
        every, routed = self._stage_parameters(layout)
        each = layout.gradient_bytes * layout.compression
        shard, over = (
            layout_groups.data_group(layout, self.system),
            layout_groups.expert_data_group(layout, self.system),
        )
        if layout.zero == 0:
            whole = self._time("all_reduce", each * every, shard) + self._time("all_reduce", each * routed, over)
            return whole, 0.0, 0.0
        reduce = self._time("reduce_scatter", each * every, shard) + self._time("reduce_scatter", each * routed, over)
        copies, summed = layout_groups.replica_group(layout, self.system), 0.0
        if copies.ranks > 1:
            summed = self._time("all_reduce", each * every / shard.ranks, copies)
        if trainer_behavior(layout.trainer).broadcasts_parts:
            every_one = shard.ranks * self._time("broadcast", 2 * every / shard.ranks, shard)
            return reduce, summed, every_one + over.ranks * self._time("broadcast", 2 * routed / over.ranks, over)
        gather = self._time("all_gather", 2 * every, shard) + self._time("all_gather", 2 * routed, over)
        return reduce, summed, gather

    def _stage_parameters(self, layout: Layout) -> tuple[float, float]:
        """Those of every data rank, and of this one's experts."""
        held = self.held
        layers, mixtures = held.layers / layout.pp, held.mixtures / layout.pp
        dense = layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared
        routed = mixtures * held.experts * held.expert / layout.ep
        ends = (held.embedding + held.head) if layout.pp == 1 else max(held.embedding, held.head)
        return (dense + ends) / layout.tp, routed / layout.tp

    def _layer_exchange(self, layout: Layout) -> tuple[float, float, float]:
        """Gathering one layer's weights, reducing its gradients, and summing those over replicas of HSDP."""
        shard, over = (
            layout_groups.data_group(layout, self.system),
            layout_groups.expert_data_group(layout, self.system),
        )
        each, routed = self._layer_parameters(layout)
        gather = self._time("all_gather", 2 * each, shard) + self._time("all_gather", 2 * routed, over)
        if layout.adapters:
            return gather, 0.0, 0.0
        wide = layout.gradient_bytes
        reduce = self._time("reduce_scatter", wide * each, shard) + self._time("reduce_scatter", wide * routed, over)
        copies = layout_groups.replica_group(layout, self.system)
        if copies.ranks == 1:
            return gather, reduce, 0.0
        return gather, reduce, self._time("all_reduce", wide * (each + routed) / shard.ranks, copies)

    def _vocabulary_exchange(self, layout: Layout) -> float:
        shard = layout_groups.data_group(layout, self.system)
        size = (self.held.embedding + self.held.head) / layout.tp
        gather = self._time("all_gather", 2 * size, shard)
        return gather + self._time("reduce_scatter", layout.gradient_bytes * size, shard)

    def _layer_parameters(self, layout: Layout) -> tuple[float, float]:
        """Of a mean layer on one rank before ZeRO-3 splits them: those of every rank, and of its own experts."""
        held = self.held
        inside = ((held.layers - held.mixtures) * held.dense + held.mixtures * held.shared) / held.layers
        routed = held.mixtures * held.experts * held.expert / held.layers / layout.ep
        return (held.attention + inside) / layout.tp, routed / layout.tp

    def _tokens(self, layout: Layout) -> float:
        return layout.micro_batch * self.model.seq / layout.cp

    def _time(self, op: Op, size: float, group: Group) -> float:
        return self.rates.links * collective_time_s(op, size, group, self.system)


def _reductions(layout: Layout) -> int:
    """In a step: our trainer scatters gradients after every micro-batch where ZeRO splits them (its parallel/fsdp.py).

    Stages of a pipeline do so after the last one.
    """
    each = layout.trainer in OWN_TRAINERS and layout.zero == SPLIT_GRADIENTS and layout.pp == 1
    return max(1, layout.micro_batches) if each else 1


def _places(layout: Layout, group: Group) -> int:
    """That a token is sent to once: nodes, which hand it on inside; in one node its ranks, where somebody sorts it."""
    nodes = group.ranks // group.per_node
    return nodes if nodes > 1 else (group.ranks if layout.deduplicates else 1)


def _copies(per_token: int, places: int) -> float:
    """Of a token that leave: one to each place that has an expert of it; to each expert where there is but one."""
    return min(float(per_token), places * (1 - (1 - 1 / places) ** per_token)) if places > 1 else float(per_token)
