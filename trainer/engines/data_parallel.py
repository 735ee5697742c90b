"""Data parallelism (DDP): every rank holds the whole model, runs its share of the batch and averages the gradients.

Ranks that start from the same weights and apply the same gradients keep the same weights. So there are two things to
do: make the weights equal once, and average the gradients in every step, while the backward pass is still running.

1. At the start, rank 0 sends its weights and buffers to all ranks (`broadcast_model`).
2. The parameters are divided into buckets (`plan_buckets`). Sending a few large messages is faster than many small
   ones; sending several messages instead of one lets the first leave early. The last layers come first, because the
   backward pass computes their gradients first.
3. A bucket is one flat tensor, and the gradients of its parameters are views of it, so what is sent needs no packing.
   The training step frees gradients by setting them to None. Autograd then creates new ones in the first micro-batch,
   which are copied into the bucket one by one. That reads and writes less memory than filling the bucket with zeros
   for autograd to add to. Later micro-batches add to the views in place. Before a bucket is sent, its gradients are
   divided by the number of ranks, each while it is copied.
4. Autograd calls a hook when it has added the gradient of a parameter. The last missing one fills its bucket, and an
   asynchronous all-reduce starts (`reduction.choose_average`). Layers may finish in another order on another rank, but
   collectives must start in the same order everywhere: bucket i waits for bucket i - 1.
5. After the backward pass, the engine waits for all buckets. Gradients are then averages, and the same on all ranks.

With several micro-batches, only the last one sends (`parallel.accumulate=sync`: every one). A weight that a rank's loss
does not depend on never calls its hook: its share is zeros, and its bucket starts after the backward pass. By default
that is an error that names the weight, because it is usually a mistake (`parallel.find_unused_parameters`).

The rounding of a sum depends on the order of its terms, which gloo and NCCL choose by position in the bucket. Buckets
depend only on the model and on `parallel.bucket_mb`, so a resumed run has the bits of an uninterrupted one (under
`communication.pattern=auto` only if the table of measured times has not changed). They are the buckets of torch's DDP,
so on 2^n ranks both engines have the same bits; otherwise DDP multiplies by 1/ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.engines.reduction import Start, choose_average
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.same_model import broadcast_model, check_device
from trainer.parallel.units import Units, list_names


class DataParallelEngine(PlainEngine):
    """The engine in which every rank holds the whole model and averages its gradients in buckets."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, units, recipe, mesh, choices)
        check_device(model, mesh.device)
        broadcast_model(model, mesh.group("replicate"), mesh.device)
        trained = {value: name for name, value in self._parameters.items() if value.requires_grad}
        average, self.compression = choose_average(trained, recipe, mesh, choices)
        self._buckets = GradientBuckets(trained, recipe.parallel.bucket_mb * 2**20, average.start, average.divisor)
        self._is_deferred = recipe.parallel.accumulate != "sync"

    @contextmanager
    def around(self, index: int, count: int) -> Iterator[None]:
        self._buckets.begin(sends=index == count - 1 or not self._is_deferred)
        yield
        unused = self._buckets.finish()
        if unused and not self._recipe.parallel.find_unused_parameters:
            self._raise_unused(unused)

    def _raise_unused(self, unused: set[nn.Parameter]) -> None:
        names = [name for name, value in self._parameters.items() if value in unused]
        message = f"the loss does not depend on {list_names(names)}, so their gradients are unknown"
        fix = "freeze them with requires_grad_(False), or set parallel.find_unused_parameters to true"
        raise ConfigError([ConfigProblem("model", message, fix)])


class GradientBuckets:
    """The gradients of all trained parameters in buckets, which are averaged as soon as they are full."""

    def __init__(self, parameters: Iterable[nn.Parameter], size: int, start: Start, divisor: int = 1) -> None:
        """Divide gradients by the divisor before `start` gets them."""
        self._buckets = [Bucket(members) for members in plan_buckets(parameters, size)]
        self._start = start
        self._divisor = divisor
        self._sends = False
        self._waits: list[Callable[[], None]] = []
        # Python's garbage collector does not see what hooks of parameters refer to, so they must not refer to buckets,
        # which refer to parameters.
        add = partial(_add_weakly, weakref.ref(self))
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket.views:
                parameter.register_post_accumulate_grad_hook(partial(add, number))

    def begin(self, *, sends: bool) -> None:
        """Expect the gradients of a backward pass; average those of all passes since the last average if it `sends`."""
        # After an exception in the last backward pass, its averages may still be written to the buckets.
        self._wait()
        self._sends = sends
        for bucket in self._buckets:
            bucket.missing = set(bucket.views)

    def finish(self) -> set[nn.Parameter]:
        """Wait until all gradients are averages; return the parameters whose share was zeros."""
        unused = self.start_missing()
        self._wait()
        return unused

    def start_missing(self) -> set[nn.Parameter]:
        """Start the buckets that are not full; return the parameters whose share is zeros."""
        unused: set[nn.Parameter] = set()
        for bucket in self._buckets[len(self._waits) :] if self._sends else ():
            unused |= bucket.fill_with_zeros()
            for parameter in bucket.missing - unused:
                # Only earlier micro-batches of this step have used it.
                bucket.views[parameter].div_(self._divisor)
            self._waits.append(self._start(bucket.values, list(bucket.views)))
        return unused

    def _wait(self) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            wait()

    def add(self, number: int, parameter: nn.Parameter) -> None:
        """Move a gradient that autograd has created into its bucket, and start all buckets whose turn it is."""
        bucket = self._buckets[number]
        view = bucket.views[parameter]
        if self._sends and parameter not in bucket.missing:
            raise RuntimeError(
                f"a gradient of shape {list(parameter.shape)} arrived twice in a backward pass, and its bucket may "
                "have been sent: recompute layers that run several times with use_reentrant=False"
            )
        divisor = self._divisor if self._sends else 1
        if parameter.grad is not None and parameter.grad is not view:
            _divide(parameter.grad, divisor, view)
            parameter.grad = view
        elif divisor > 1:
            view.div_(divisor)
        bucket.missing.discard(parameter)
        while self._sends and len(self._waits) < len(self._buckets) and not self._buckets[len(self._waits)].missing:
            full = self._buckets[len(self._waits)]
            self._waits.append(self._start(full.values, list(full.views)))


def _divide(gradient: torch.Tensor, divisor: int, view: torch.Tensor) -> None:
    if divisor > 1:
        torch.div(gradient, divisor, out=view)
    else:
        view.copy_(gradient)


def _add_weakly(reference: weakref.ref[GradientBuckets], number: int, parameter: Any) -> None:
    buckets = reference()
    if buckets is not None:
        buckets.add(number, parameter)


class Bucket:
    """Parameters and one flat tensor for their gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first, count = parameters[0], sum(parameter.numel() for parameter in parameters)
        self.values = torch.empty(count, dtype=first.dtype, device=first.device)
        self.missing: set[nn.Parameter] = set()
        """Parameters without a gradient in this backward pass."""
        parts = self.values.split([parameter.numel() for parameter in parameters])
        # The optimizer's kernels need gradients with the strides of their parameters.
        self.views = {
            parameter: part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
            for part, parameter in zip(parts, parameters, strict=True)
        }

    def fill_with_zeros(self) -> set[nn.Parameter]:
        """Give zeros to parameters without a gradient, and return them."""
        unused = {value: view for value, view in self.views.items() if value.grad is None}
        for value, view in unused.items():
            value.grad = view.zero_()
        return set(unused)


def plan_buckets(parameters: Iterable[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Divide parameters into buckets, the last parameter first; a bucket ends once it has at least `size` bytes."""
    buckets: list[list[nn.Parameter]] = []
    filled = size
    for parameter in reversed(list(parameters)):
        if filled >= size:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.numel() * parameter.element_size()
    return buckets
