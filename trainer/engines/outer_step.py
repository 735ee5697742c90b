"""Local steps (Local SGD, DiLoCo): copies of the model train apart, and meet once in many steps.

Averaging gradients in every step sends as many bytes as the model has weights, each time. Between groups of nodes with
a slow link, copies of the model can instead take `communication.inner_steps` steps of their own, each with its own
samples, gradients, clipping and optimizer. A copy is a rank under ddp, and the ranks that share it under hsdp. Then
they take one outer step together:

1. All copies have left from the same weights, the shared ones. Each subtracts its own weights from them: the
   difference is where its inner steps have gone, with the sign of a gradient.
2. The differences are averaged over the copies. This all-reduce is all that copies send of their weights.
3. SGD with Nesterov's momentum takes the average as a gradient and updates the shared weights (`update_shared`). All
   copies compute the same update, so the shared weights and their momentum stay equal on all of them, bit for bit.
4. Every copy continues from the shared weights. The moments of its inner optimizer stay as they are.

With `outer_lr=1` and `outer_momentum=0` the shared weights become the average of the copies: that is Local SGD, and
with a single inner step of plain SGD, the update of data parallelism. DiLoCo is AdamW inside, 0.7 and 0.9 outside
(arXiv:2311.08105).

The last step of a run is always an outer step. A checkpoint has the shared weights as those of the model, so whatever
reads it gets a model that all copies agree on. Between two outer steps a copy differs from them: each rank also saves
its own weights, moments and loss scale, and a resumed run has the same bits. Other ranks or another strategy start a
new round from the shared weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from trainer.compression.wire import count_all_reduce_bytes
from trainer.config.communication import CommunicationConfig
from trainer.engines.data_parallel import plan_buckets
from trainer.engines.reduction import start_average
from trainer.parallel.gradients import to_local

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
LOCAL = "local."
"""Start of the names of tensors that a copy of the model has for itself."""


@dataclass(frozen=True)
class Weight:
    """This rank's part of a trained parameter, of the shared weights, and of their momentum."""

    own: torch.Tensor
    shared: torch.Tensor
    momentum: torch.Tensor


class OuterStep:
    """The weights that all copies of the model share, and the step that moves them to where the copies have gone."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        settings: CommunicationConfig,
        group: Any,
        *,
        bucket_mb: int,
        sent_dtype: torch.dtype,
    ) -> None:
        """Share the weights of the first copy; `group` has a rank of each copy, and is None if there is only one."""
        trained = {name: value.detach() for name, value in parameters if value.requires_grad}
        self._shared = {name: value.clone() for name, value in trained.items()}
        self._momentum = {name: torch.zeros_like(value) for name, value in trained.items()}
        weights = [
            Weight(to_local(own), to_local(self._shared[name]), to_local(self._momentum[name]))
            for name, own in trained.items()
        ]
        by_own: Any = {weight.own: weight for weight in weights}
        # Differences are sent bucket by bucket, because those of all weights would take as much memory as the model.
        buckets = plan_buckets(by_own, bucket_mb * 2**20)
        self._buckets: list[list[Weight]] = [[by_own[own] for own in bucket] for bucket in buckets]
        self._settings, self._group, self._sent_dtype = settings, group, sent_dtype
        self._copies = 1 if group is None else dist.get_world_size(group)
        self._figures: dict[str, torch.Tensor | float] = {}
        # Initial values may differ in the last bit between processors, and would differ for ever.
        for weight in weights if group is not None else ():
            dist.broadcast(weight.shared, group=group, group_src=0)
        self.begin_round()

    def shared_weights(self) -> dict[str, torch.Tensor]:
        """Return the shared weights of trained parameters by name, sharded ones as DTensors."""
        return self._shared

    def named_momentum(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the momentum of the shared weights, which is equal on all copies."""
        yield from self._momentum.items()

    @torch.no_grad()
    def begin_round(self) -> None:
        """Let this copy of the model leave from the shared weights."""
        for weight in self._list_weights():
            weight.own.copy_(weight.shared)

    @torch.no_grad()
    def after_step(self, step: int, steps: int) -> None:
        """Take an outer step if the copies of a run of `steps` steps meet after this one."""
        if not is_outer_step(step, self._settings.inner_steps, steps):
            return
        settings, sent_bytes, whole_bytes = self._settings, 0, 0
        for bucket in self._buckets:
            difference = torch.cat([(weight.shared - weight.own).flatten() for weight in bucket])
            start_average(difference, self._group, self._sent_dtype)()
            parts = difference.split([weight.own.numel() for weight in bucket])
            for weight, part in zip(bucket, parts, strict=True):
                average = part.view_as(weight.shared)
                update_shared(weight.shared, weight.momentum, average, settings.outer_lr, settings.outer_momentum)
            count = difference.numel()
            sent_bytes += count_all_reduce_bytes(count * self._sent_dtype.itemsize, self._copies)
            whole_bytes += count_all_reduce_bytes(count * difference.element_size(), self._copies)
        self.begin_round()
        self._record(step, sent_bytes, whole_bytes)

    def measure(self) -> dict[str, torch.Tensor | float]:
        """Return the figures of the last round; empty before the first outer step of a process.

        `wire_mb` is what this rank has sent to other copies in an average step of the round, `compression_ratio` how
        many times more an fp32 all-reduce of the gradients in every step sends.
        """
        return self._figures

    def _record(self, step: int, sent_bytes: int, whole_bytes: int) -> None:
        # The last round of a run may be shorter than the others.
        taken = (step - 1) % self._settings.inner_steps + 1
        ratio = whole_bytes * taken / sent_bytes if sent_bytes else 1.0
        self._figures = {"wire_mb": sent_bytes / taken / 1e6, "compression_ratio": ratio}

    def _list_weights(self) -> Iterator[Weight]:
        for bucket in self._buckets:
            yield from bucket


def update_shared(
    shared: torch.Tensor, momentum: torch.Tensor, difference: torch.Tensor, rate: float, decay: float
) -> None:
    """Take a step of SGD with Nesterov's momentum in place; the average difference of the copies is the gradient."""
    momentum.mul_(decay).add_(difference)
    shared.sub_(momentum * decay + difference, alpha=rate)


def is_outer_step(step: int, inner_steps: int, steps: int) -> bool:
    """Return whether copies meet after a step, counted from 1: after each round, and at the end of the run."""
    return step % inner_steps == 0 or step == steps
