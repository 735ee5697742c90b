"""The compression of an engine's gradients: the method of the settings, what each rank has left over, and figures.

An engine calls `average` for each bucket of gradients, in the same order on all ranks. The residuals are stored by the
name of the parameter, so that a resumed run may cut its buckets elsewhere. They change only when the step has been
judged (`settle`): an update that is skipped because of a NaN or infinity leaves them as they were.

With top-K, an element arrives once in many steps, as the sum of all that has waited. AdamW divides by the root of the
mean square of what arrives, so an element that comes every n steps, as the sum of n gradients, moves its weight about
sqrt(n) times less than n single gradients would. Therefore the optimizer gets a moving average of what arrives
(`communication.smoothing`): the same sum, spread over a few steps. All ranks compute the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.compression.powersgd import average_powersgd, make_query
from trainer.compression.quantized import average_quantized
from trainer.compression.randomk import average_randomk
from trainer.compression.topk import ENTRY_BYTES, average_topk
from trainer.compression.wire import Wire, count_all_reduce_bytes
from trainer.config.communication import CommunicationConfig
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.residual import METHODS_WITH_RESIDUAL

FLOAT_BYTES = 4
_BUCKET_SEEDS = 1_000_003


@dataclass(frozen=True)
class Part:
    """A part of a bucket: the gradient of a parameter, or of all parameters of a sharded unit."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Compression:
    """Averages of gradients over a group, compressed as the settings say."""

    def __init__(self, settings: CommunicationConfig, group: Any, parts: Iterable[Part], device: Any) -> None:
        self._settings = settings
        self._wire = Wire(group)
        check_gain(settings, self._wire.ranks)
        parts = list(parts) if settings.compression in METHODS_WITH_RESIDUAL else []
        self._residuals = PartState(parts, device)
        is_smoothed = settings.compression == "topk" and settings.smoothing > 0
        self._smoothed = PartState(parts if is_smoothed else [], device)
        self._queries: dict[str, Any] = {}
        if settings.compression == "powersgd":
            drawn = {part.name: make_query(part.shape, settings.rank, seed) for seed, part in enumerate(parts)}
            self._queries = {name: query.to(device) for name, query in drawn.items() if query is not None}
        self._changes: list[tuple[Any, Any]] = []
        self._norms: list[tuple[Any, Any]] = []
        self._whole_bytes = self._buckets = self._seed = 0
        self._is_active = False

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the state that a checkpoint needs to continue with the same bits."""
        for name, residual in self._residuals.tensors.items():
            yield f"residual.{name}", residual
        for name, smoothed in self._smoothed.tensors.items():
            yield f"smoothed.{name}", smoothed
        for name, query in self._queries.items():
            # With the rank in the name, a resumed run may change it: then it begins with new ones.
            yield f"query{self._settings.rank}.{name}", query

    def begin(self, step: int, seed: int) -> None:
        """Begin a step, counted from 0; `seed` must be the same on all ranks and another one for each step."""
        self._is_active = step >= self._settings.warmup_steps
        self._seed = seed
        self._whole_bytes = self._buckets = self._wire.sent_bytes = 0
        self._changes, self._norms = [], []

    @torch.no_grad()
    def average(self, bucket: Any, parts: Sequence[Part]) -> None:
        """Replace a flat bucket, which consists of these parts, by its average over the group."""
        self._buckets += 1
        if not bucket.numel():
            return
        self._whole_bytes += count_all_reduce_bytes(FLOAT_BYTES * bucket.numel(), self._wire.ranks)
        gradient = bucket if bucket.dtype == torch.float32 else bucket.float()
        if self._is_active:
            norm = gradient.norm()
            left_over = self._compress(gradient, parts)
            self._norms.append((norm, left_over.norm()))
        else:
            self._wire.all_reduce(gradient)
            gradient.div_(self._wire.ranks)
        if self._smoothed.tensors:
            before = self._smoothed.join(parts)
            if self._is_active:
                gradient.lerp_(before, self._settings.smoothing)
            self._changes.append((before, gradient.clone()))
        if gradient is not bucket:
            bucket.copy_(gradient)

    @torch.no_grad()
    def settle(self, skipped: torch.Tensor) -> None:
        """Store what is left over after a step, unless `skipped` is 1; nothing waits for the device."""
        for before, after in self._changes:
            torch.where(skipped.to(before.device) > 0, before, after, out=before)
        self._changes = []

    def measure(self) -> dict[str, torch.Tensor | float]:
        """Return the figures of a step.

        `wire_mb` is what this rank has sent, `compression_ratio` how many times more an fp32 all-reduce sends, and
        `compression_residual` the norm of what this rank has not sent, relative to that of its gradient.
        """
        sent = self._wire.sent_bytes
        figures: dict[str, torch.Tensor | float] = {
            "wire_mb": sent / 1e6,
            "compression_ratio": self._whole_bytes / sent if sent else 1.0,
        }
        if self._norms:
            gradients, left_over = (torch.stack(norms).norm() for norms in zip(*self._norms, strict=True))
            figures["compression_residual"] = left_over / gradients.clamp(min=torch.finfo(torch.float32).tiny)
        return figures

    def _compress(self, gradient: Any, parts: Sequence[Part]) -> Any:
        """Average a flat fp32 gradient and return what this rank has left over."""
        settings, wire = self._settings, self._wire
        if settings.compression not in METHODS_WITH_RESIDUAL:
            return average_quantized(gradient, wire, settings.compression)  # type: ignore[arg-type]
        residual = self._residuals.join(parts)
        if settings.compression == "topk":
            left_over = average_topk(gradient, residual, wire, settings.ratio)
        elif settings.compression == "randomk":
            seed = (self._seed * _BUCKET_SEEDS + self._buckets) % 2**63
            left_over = average_randomk(gradient, residual, wire, settings.ratio, seed)
        else:
            queries = [self._queries.get(part.name) for part in parts]
            shapes = [part.shape for part in parts]
            left_over, new_queries = average_powersgd(gradient, residual, queries, shapes, wire)
            pairs = zip(queries, new_queries, strict=True)
            self._changes += [(query, new_query) for query, new_query in pairs if query is not None]
        self._changes.append((residual, left_over))
        return left_over


class PartState:
    """A tensor for each part, stored by name and lent to a bucket as one flat tensor."""

    def __init__(self, parts: Iterable[Part], device: Any) -> None:
        self.tensors = {part.name: torch.zeros(part.shape, device=device) for part in parts}
        self._joined: dict[tuple[str, ...], Any] = {}
        """The tensors of the parts of a bucket, one after the other: those in `tensors` are views of them."""

    def join(self, parts: Sequence[Part]) -> Any:
        """Return the tensors of a bucket as one flat tensor; they are copied only if the bucket is a new one."""
        names = tuple(part.name for part in parts)
        if names not in self._joined:
            joined = torch.cat([self.tensors[name].flatten() for name in names])
            pieces = joined.split([part.size for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                self.tensors[part.name] = piece.view(part.shape)
            self._joined = {others: tensor for others, tensor in self._joined.items() if not set(others) & set(names)}
            self._joined[names] = joined
        return self._joined[names]


def check_gain(settings: CommunicationConfig, ranks: int) -> None:
    """Raise ConfigError if top-K would send more than an all-reduce: its messages grow with the number of ranks."""
    largest = 2 * FLOAT_BYTES / (ENTRY_BYTES * ranks)
    if settings.compression == "topk" and settings.ratio >= largest:
        message = f"{settings.ratio:g}, but topk on {ranks} ranks sends fewer bytes than an all-reduce only below "
        message += f"{largest:.3g}"
        fix = "use less, or set communication.compression to randomk or powersgd"
        raise ConfigError([ConfigProblem("communication.ratio", message, fix)])
