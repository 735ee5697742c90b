"""One optimizer step as events on three streams: what a GPU computes, and what it sends inside and outside its node.

The rank shown is one of the last pipeline stage: it waits for the first micro-batch and for nobody in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

from simulator.collectives import Op, collective_time_s, layout_groups
from simulator.collectives.group import Group
from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.model import Model, Transformer
from simulator.parameters import count_parameters
from simulator.step.compute import ComputeTimes
from simulator.step.prediction import Prediction, predict

Stream = Literal["compute", "intra-node", "inter-node"]
STREAMS: tuple[Stream, ...] = ("compute", "intra-node", "inter-node")
BACKWARD = 2 / 3
"""Of forward and backward, where a model has no layers to ask."""
MICRO = 1e6


@dataclass(frozen=True)
class Event:
    stream: Stream
    name: str
    start: float
    end: float
    """Seconds since the step began."""


def build_timeline(model: Model, layout: Layout, system: System, rates: Rates | None = None) -> list[Event]:
    """Ends where `predict` says the step does: a part that is exposed moves the clock, one that is hidden does not."""
    return _Drawing(model, layout, system, rates or load_fitted_rates()).events()


def to_chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """For chrome://tracing and ui.perfetto.dev: a complete event each, in microseconds."""
    rows: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": stream}}
        for number, stream in enumerate(STREAMS)
    ]
    rows += (
        {
            "ph": "X",
            "pid": 0,
            "tid": STREAMS.index(event.stream),
            "name": event.name,
            "ts": event.start * MICRO,
            "dur": (event.end - event.start) * MICRO,
        }
        for event in events
    )
    return {"displayTimeUnit": "ms", "traceEvents": rows}


class _Drawing:
    def __init__(self, model: Model, layout: Layout, system: System, rates: Rates) -> None:
        self.model, self.layout, self.system, self.rates = model, layout, system, rates
        self.found: Prediction = predict(model, layout, system, rates)
        self.left = dict(self.found.parts)
        self.layers = max(1, round(count_parameters(model).layers / layout.pp))
        self.count = max(1, layout.micro_batches)
        self.now = 0.0
        self.drawn: list[Event] = []

    def events(self) -> list[Event]:
        forward, backward = self._passes()
        bubble = self.left.pop("pipeline bubble", 0.0)
        self._wait("wait for the first micro-batch", bubble * forward.share)
        began = self.now
        for kind, micro in self._order():
            began = self.now
            self._pass(forward if kind == "forward" else backward, micro)
        self._wait("wait for the other stages", bubble * backward.share)
        self._gradients(self.left.pop("data", 0.0), began)
        self._work("optimizer", self.left.pop("optimizer", 0.0))
        for name, seconds in self.left.items():
            self._work(name, seconds)
        return sorted((e for e in self.drawn if e.end > e.start), key=lambda e: (e.start, STREAMS.index(e.stream)))

    def _order(self) -> Iterable[tuple[str, int]]:
        """The last stage of 1F1B goes to and fro; GPipe runs everything forward first."""
        if self.layout.pp > 1 and self.layout.schedule == "gpipe":
            yield from zip(repeat("forward"), range(self.count), strict=False)
            yield from zip(repeat("backward"), range(self.count), strict=False)
            return
        for micro in range(self.count):
            yield "forward", micro
            yield "backward", micro

    def _passes(self) -> tuple[_Pass, _Pass]:
        """What one micro-batch takes each way, out of the parts of the prediction."""
        works = self._forward_shares()
        sums: dict[str, tuple[float, float]] = {}
        for name in ("compute", "attention", "memory bound", "host", "recompute", *_SENT):
            each = self.left.pop(name, 0.0) / self.count
            share = works.get(name, 0.0 if name == "recompute" else 1 - BACKWARD)
            sums[name] = (each * share, each * (1 - share))
        head = self.left.pop("vocabulary", 0.0) / self.count
        head_share = works.get("vocabulary", 1 - BACKWARD)
        ways = [
            _Pass(
                way,
                own=sum(sums[name][side] for name in sums if name not in _SENT) / self.layers,
                sent={name: sums[name][side] / self.layers for name in _SENT},
                head=head * (head_share if side == 0 else 1 - head_share),
            )
            for side, way in enumerate(("forward", "backward"))
        ]
        total = sum(one.seconds(self.layers) for one in ways) or 1.0
        first, second = (one.with_share(one.seconds(self.layers) / total) for one in ways)
        return first, second

    def _forward_shares(self) -> dict[str, float]:
        if not isinstance(self.model, Transformer):
            return {}
        compute = ComputeTimes(self.model, self.system.gpu, self.rates)
        work, head = compute.layer(self.layout, mixture=self.model.experts is not None), compute.head(self.layout)
        pairs = {
            "compute": work.products,
            "attention": work.attention,
            "memory bound": work.rest,
            "vocabulary": head,
        }
        return {name: s.forward / (s.forward + s.backward) for name, s in pairs.items() if s.forward + s.backward}

    def _pass(self, one: _Pass, micro: int) -> None:
        if one.way == "backward":
            self._work(f"head backward {micro}", one.head)
        order = range(self.layers) if one.way == "forward" else reversed(range(self.layers))
        for layer in order:
            begins = self.now
            self._work(f"layer {layer} {one.way} {micro}", one.own)
            for name, seconds in one.sent.items():
                self._exchange(f"{name} {layer} {one.way} {micro}", name, seconds)
            self._prefetch(layer, one.way, micro, begins)
        if one.way == "forward":
            self._work(f"head forward {micro}", one.head)

    def _prefetch(self, layer: int, way: str, micro: int, begins: float) -> None:
        """Weights of the next layer under ZeRO-3 travel beside this one's work; what shows is in `gather` already."""
        is_kept = self.layout.keeps_gathered and (way, micro) != ("forward", 0)
        if self.layout.zero != 3 or is_kept:  # noqa: PLR2004
            return
        group = layout_groups.data_group(self.layout, self.system)
        held = count_parameters(self.model)
        size = 2 * (held.total - held.embedding - held.head) / held.layers / self.layout.tp
        hidden = min(self._time("all_gather", size, group), self.now - begins - 1e-12)
        self._draw(self._over(group), f"all-gather {layer} {way} {micro}", begins, begins + hidden)

    def _gradients(self, exposed: float, began: float) -> None:
        """Buckets leave during the last backward; they end where the exposed part does."""
        if not exposed:
            return
        group = layout_groups.data_group(self.layout, self.system)
        held = count_parameters(self.model).total / (self.layout.tp * self.layout.pp)
        size = self.layout.gradient_bytes * held * self.layout.compression
        op: Op = "all_reduce" if self.layout.zero == 0 else "reduce_scatter"
        whole = max(exposed, min(self._time(op, size, group), exposed + self.now - began))
        buckets = max(1, min(64, round(size / (self.layout.bucket_mb * 2**20))))
        start, self.now = self.now + exposed - whole, self.now + exposed
        for number in range(buckets):
            ends = start + whole * (number + 1) / buckets
            name = f"{op.replace('_', '-')} bucket {number}"
            self._draw(self._over(group), name, start + whole * number / buckets, ends)

    def _work(self, name: str, seconds: float) -> None:
        self._draw("compute", name, self.now, self.now + seconds)
        self.now += seconds

    def _wait(self, name: str, seconds: float) -> None:
        if seconds:
            self._draw(
                self._over(layout_groups.pipeline_group(self.layout, self.system)), name, self.now, self.now + seconds
            )
        self.now += seconds

    def _exchange(self, label: str, name: str, seconds: float) -> None:
        if seconds:
            self._draw(self._over(_SENT[name](self.layout, self.system)), label, self.now, self.now + seconds)
        self.now += seconds

    def _draw(self, stream: Stream, name: str, start: float, end: float) -> None:
        self.drawn.append(Event(stream, name, start, end))

    def _over(self, group: Group) -> Stream:
        return "intra-node" if group.ranks <= group.per_node else "inter-node"

    def _time(self, op: Op, size: float, group: Group) -> float:
        return self.rates.links * collective_time_s(op, size, group, self.system)


_SENT: dict[str, Any] = {
    "tensor": layout_groups.tensor_group,
    "context": layout_groups.context_group,
    "experts": layout_groups.expert_group,
    "gather": layout_groups.data_group,
}
"""Exposed exchanges of every layer, by their part of the prediction."""


@dataclass(frozen=True)
class _Pass:
    """One micro-batch one way through this rank's layers, in seconds of one layer."""

    way: Literal["forward", "backward"] | str
    own: float
    sent: dict[str, float]
    head: float
    share: float = 0.0
    """Of both ways together."""

    def seconds(self, layers: int) -> float:
        return layers * (self.own + sum(self.sent.values())) + self.head

    def with_share(self, share: float) -> _Pass:
        return _Pass(self.way, self.own, self.sent, self.head, share)
