"""Lay out one optimizer step as events on three streams: compute, and communication inside and between nodes.

The rank shown belongs to the last pipeline stage: it waits for the first micro-batch and never in between.
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
from simulator.step.prediction import predict

Stream = Literal["compute", "intra-node", "inter-node"]
STREAMS: tuple[Stream, ...] = ("compute", "intra-node", "inter-node")
BACKWARD_SHARE = 2 / 3
"""Share of backward in forward and backward, if the model has no layers to derive it from."""
MICROSECONDS = 1e6


@dataclass(frozen=True)
class Event:
    """A bar of the timeline, in seconds since the start of the step."""

    stream: Stream
    name: str
    start: float
    end: float


def build_timeline(model: Model, layout: Layout, system: System, rates: Rates | None = None) -> list[Event]:
    """Return the events of a step, which ends when `predict` says: only exposed time moves the clock."""
    return _Drawing(model, layout, system, rates or load_fitted_rates()).events()


def to_chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """Convert events to the trace format of chrome://tracing and ui.perfetto.dev, in microseconds."""
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
            "ts": event.start * MICROSECONDS,
            "dur": (event.end - event.start) * MICROSECONDS,
        }
        for event in events
    )
    return {"displayTimeUnit": "ms", "traceEvents": rows}


class _Drawing:
    def __init__(self, model: Model, layout: Layout, system: System, rates: Rates) -> None:
        self.model, self.layout, self.system, self.rates = model, layout, system, rates
        prediction = predict(model, layout, system, rates)
        self.remaining = dict(prediction.parts)
        self.layers = max(1, round(count_parameters(model).layers / layout.pp))
        self.count = max(1, layout.micro_batches)
        self.now = 0.0
        self.drawn: list[Event] = []

    def events(self) -> list[Event]:
        forward, backward = self._passes()
        bubble = self.remaining.pop("pipeline bubble", 0.0)
        self._wait("wait for the first micro-batch", bubble * forward.share)
        pass_start = self.now
        for kind, micro in self._order():
            pass_start = self.now
            self._draw_pass(forward if kind == "forward" else backward, micro)
        self._wait("wait for the other stages", bubble * backward.share)
        self._gradients(self.remaining.pop("data", 0.0), pass_start)
        self._work("optimizer", self.remaining.pop("optimizer", 0.0))
        for name, seconds in self.remaining.items():
            self._work(name, seconds)
        return sorted((e for e in self.drawn if e.end > e.start), key=lambda e: (e.start, STREAMS.index(e.stream)))

    def _order(self) -> Iterable[tuple[str, int]]:
        """Yield the order of passes: the last stage of 1F1B alternates, GPipe runs every forward first."""
        if self.layout.pp > 1 and self.layout.schedule == "gpipe":
            yield from zip(repeat("forward"), range(self.count), strict=False)
            yield from zip(repeat("backward"), range(self.count), strict=False)
            return
        for micro in range(self.count):
            yield "forward", micro
            yield "backward", micro

    def _passes(self) -> tuple[_Pass, _Pass]:
        """Return forward and backward of one micro-batch, from the components of the prediction."""
        forward_shares = self._forward_shares()
        sums: dict[str, tuple[float, float]] = {}
        for name in ("compute", "attention", "memory bound", "host", "recompute", *_SENT):
            each = self.remaining.pop(name, 0.0) / self.count
            share = forward_shares.get(name, 0.0 if name == "recompute" else 1 - BACKWARD_SHARE)
            sums[name] = (each * share, each * (1 - share))
        head = self.remaining.pop("vocabulary", 0.0) / self.count
        head_share = forward_shares.get("vocabulary", 1 - BACKWARD_SHARE)
        passes = [
            _Pass(
                direction,
                own=sum(sums[name][side] for name in sums if name not in _SENT) / self.layers,
                sent={name: sums[name][side] / self.layers for name in _SENT},
                head=head * (head_share if side == 0 else 1 - head_share),
            )
            for side, direction in enumerate(("forward", "backward"))
        ]
        total = sum(each.seconds(self.layers) for each in passes) or 1.0
        first, second = (each.with_share(each.seconds(self.layers) / total) for each in passes)
        return first, second

    def _forward_shares(self) -> dict[str, float]:
        if not isinstance(self.model, Transformer):
            return {}
        compute = ComputeTimes(self.model, self.system.gpu, self.rates)
        work, head = compute.layer(self.layout, mixture=self.model.experts is not None), compute.head(self.layout)
        pairs = {
            "compute": work.products,
            "attention": work.attention,
            "memory bound": work.elementwise,
            "vocabulary": head,
        }
        return {name: s.forward / (s.forward + s.backward) for name, s in pairs.items() if s.forward + s.backward}

    def _draw_pass(self, layers_pass: _Pass, micro: int) -> None:
        if layers_pass.direction == "backward":
            self._work(f"head backward {micro}", layers_pass.head)
        order = range(self.layers) if layers_pass.direction == "forward" else reversed(range(self.layers))
        for layer in order:
            layer_start = self.now
            self._work(f"layer {layer} {layers_pass.direction} {micro}", layers_pass.own)
            for name, seconds in layers_pass.sent.items():
                self._exchange(f"{name} {layer} {layers_pass.direction} {micro}", name, seconds)
            self._prefetch(layer, layers_pass.direction, micro, layer_start)
        if layers_pass.direction == "forward":
            self._work(f"head forward {micro}", layers_pass.head)

    def _prefetch(self, layer: int, direction: str, micro: int, layer_start: float) -> None:
        """Draw the hidden gather of the next layer's weights under ZeRO-3; the exposed part is in `gather` already."""
        gathered_before = self.layout.keeps_gathered and (direction, micro) != ("forward", 0)
        if self.layout.zero != 3 or gathered_before:  # noqa: PLR2004
            return
        group = layout_groups.data_group(self.layout, self.system)
        held = count_parameters(self.model)
        size = 2 * (held.total - held.embedding - held.head) / held.layers / self.layout.tp
        hidden = min(self._time("all_gather", size, group), self.now - layer_start - 1e-12)
        self._draw(self._stream(group), f"all-gather {layer} {direction} {micro}", layer_start, layer_start + hidden)

    def _gradients(self, exposed: float, pass_start: float) -> None:
        """Draw the buckets: they start during the last backward and end with the exposed part."""
        if not exposed:
            return
        group = layout_groups.data_group(self.layout, self.system)
        held = count_parameters(self.model).total / (self.layout.tp * self.layout.pp)
        size = self.layout.gradient_bytes * held * self.layout.compression
        op: Op = "all_reduce" if self.layout.zero == 0 else "reduce_scatter"
        whole = max(exposed, min(self._time(op, size, group), exposed + self.now - pass_start))
        buckets = max(1, min(64, round(size / (self.layout.bucket_mb * 2**20))))
        start, self.now = self.now + exposed - whole, self.now + exposed
        for number in range(buckets):
            ends = start + whole * (number + 1) / buckets
            name = f"{op.replace('_', '-')} bucket {number}"
            self._draw(self._stream(group), name, start + whole * number / buckets, ends)

    def _work(self, name: str, seconds: float) -> None:
        self._draw("compute", name, self.now, self.now + seconds)
        self.now += seconds

    def _wait(self, name: str, seconds: float) -> None:
        if seconds:
            self._draw(
                self._stream(layout_groups.pipeline_group(self.layout, self.system)), name, self.now, self.now + seconds
            )
        self.now += seconds

    def _exchange(self, label: str, name: str, seconds: float) -> None:
        if seconds:
            self._draw(self._stream(_SENT[name](self.layout, self.system)), label, self.now, self.now + seconds)
        self.now += seconds

    def _draw(self, stream: Stream, name: str, start: float, end: float) -> None:
        self.drawn.append(Event(stream, name, start, end))

    def _stream(self, group: Group) -> Stream:
        return "intra-node" if group.ranks <= group.per_node else "inter-node"

    def _time(self, op: Op, size: float, group: Group) -> float:
        return self.rates.links * collective_time_s(op, size, group, self.system)


_SENT: dict[str, Any] = {
    "tensor": layout_groups.tensor_group,
    "context": layout_groups.context_group,
    "experts": layout_groups.expert_group,
    "gather": layout_groups.data_group,
}
"""Exposed exchanges of every layer, by component of the prediction."""


@dataclass(frozen=True)
class _Pass:
    """Forward or backward of one micro-batch on this rank, in seconds per layer."""

    direction: Literal["forward", "backward"] | str
    own: float
    sent: dict[str, float]
    head: float
    share: float = 0.0
    """Share of forward and backward together."""

    def seconds(self, layers: int) -> float:
        return layers * (self.own + sum(self.sent.values())) + self.head

    def with_share(self, share: float) -> _Pass:
        return _Pass(self.direction, self.own, self.sent, self.head, share)
