"""Keep the experts of a model equally loaded, and measure how equal they are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from trainer.config.layout import DATA_AXES
from trainer.models.routing import Router
from trainer.parallel.mesh import Mesh


class ExpertBalance:
    """The loads of all experts of this rank's layers, and what follows from them; nothing waits for the device."""

    def __init__(self, modules: Iterable[nn.Module], mesh: Mesh) -> None:
        self._mesh = mesh
        self._routers = [part for module in modules for part in module.modules() if isinstance(part, Router)]

    def begin(self, micro_batches: int, scale: torch.Tensor | None) -> None:
        """Start to count loads; give the balancing loss the factor that the main loss of a micro-batch has.

        All ranks of the tensor axis add its gradient, so each of them adds a part.
        """
        parts = micro_batches * self._mesh.layout.tensor
        for router in self._routers:
            router.load.zero_()
            router.loss_scale.fill_(1.0 / parts)
            if scale is not None:
                router.loss_scale.mul_(scale)

    @torch.no_grad()
    def end(self) -> torch.Tensor | None:
        """Adjust the biases and return the largest load of an expert relative to the mean; None without experts.

        An expert's bias rises by a fixed amount if its load in this step, on all ranks, was below the mean, and falls
        otherwise (arXiv:2412.19437, section 2.1.2).
        """
        if not self._routers:
            return None
        # Recomputed layers count their tokens twice, which changes neither a sign nor a ratio.
        loads = torch.stack([router.load for router in self._routers])
        loads = self._mesh.sum_over(loads, *DATA_AXES).float()
        means = loads.mean(1, keepdim=True)
        for router, change in zip(self._routers, (means - loads).sign(), strict=True):
            if router.has_bias:
                router.balance_bias.add_(change, alpha=router.balance_rate)
        return self._find_largest(loads / means.clamp(min=1.0))

    def _find_largest(self, ratios: torch.Tensor) -> torch.Tensor:
        largest = ratios.max()
        group = self._mesh.group("pipeline")
        if group is not None:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return largest
