"""Run a schedule on a tensor with torch.distributed's point-to-point calls: tensors only, nothing is pickled.

Messages of a step are started together, so a rank sends and receives at the same time; NCCL sees them as one group. The
tensor is processed in chunks. Chunk c executes step s in round c * interval + s; in each round, the chunks take turns,
oldest first: wait for the messages of the previous step, add them, start the next step. While a chunk is added, the
messages of the others are on the wire.

Every rank goes through the same rounds and chunks in the same order, and a wait is for messages that the peer has
started earlier in this order. So no rank waits in a circle. On a GPU a wait only orders streams: the host launches all
steps without stopping.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import local as ThreadLocal
from typing import Any

import torch
import torch.distributed

from trainer.collectives.schedule import Schedule, Span, Step, Transfer

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

TAG = 0x6D75
"""Keeps these messages apart from others between the same ranks, with backends that have tags, such as gloo."""


class ConnectionLost(RuntimeError):
    """A message to or from a peer failed or did not arrive within the timeout of the process group.

    The peer that is named has ended, hangs, or has itself lost another one. The group cannot be used any more.
    """


def run_schedule(flat: Any, schedule: Schedule, chunks: Sequence[Sequence[Span]], group: Any) -> None:
    """Change a flat tensor in place as the schedule of this rank says; `chunks` has the span of each block."""
    if not schedule.steps:
        return
    size = max(_count_added(step, spans) for step in schedule.steps for spans in chunks)
    count = min(schedule.chunks_in_flight, len(chunks))
    scratches = _reserve(flat, count * size).split(size) if size else [flat[:0]] * count
    messenger = Messenger(group, flat.device)
    running = [_Chunk(flat, spans, scratches[index % count], messenger) for index, spans in enumerate(chunks)]
    steps, interval = len(schedule.steps), schedule.chunk_interval
    for number in range((len(chunks) - 1) * interval + steps + 1):
        # A chunk takes one turn more than it has steps: in the last one it only finishes.
        oldest = max(0, -((steps - number) // interval))
        for index in range(oldest, min(len(chunks), number // interval + 1)):
            step = number - index * interval
            running[index].finish()
            if step < steps:
                running[index].start(schedule.steps[step])


class _Chunk:
    """A part of the tensor on its way through the steps."""

    def __init__(self, flat: Any, spans: Sequence[Span], scratch: Any, messenger: Messenger) -> None:
        self._flat = flat
        self._spans = spans
        self._scratch = scratch
        self._messenger = messenger
        self._requests: list[Request] = []
        self._additions: list[tuple[Any, Any]] = []

    def start(self, step: Step) -> None:
        """Start the messages of a step; blocks without elements need none."""
        messages, used = [], 0
        for transfer in step:
            start, stop = _locate(transfer, self._spans)
            if start == stop:
                continue
            part = self._flat[start:stop]
            if transfer.action == "add":
                message = self._scratch[used : used + stop - start]
                self._additions.append((part, message))
                used += stop - start
                part = message
            messages.append((transfer.action == "send", part, transfer.peer))
        self._requests = self._messenger.start(messages)

    def finish(self) -> None:
        """Wait for the messages and add what was received to be added, in the order of the step."""
        self._messenger.finish(self._requests)
        for part, message in self._additions:
            part.add_(message)
        self._requests, self._additions = [], []


Message = tuple[bool, Any, int]
"""(is_sent, tensor, rank of the peer in the group)."""
Request = tuple[Any, Sequence[int]]
"""A request of the backend, and the peers to name if it fails."""


class Messenger:
    """Starts messages and waits for them; errors say where they were exchanged."""

    def __init__(self, group: Any, device: Any, where: str = "a collective") -> None:
        self._where = where
        self._group = group or dist.group.WORLD
        self._is_batched = device.type != "cpu"

    def start(self, messages: Sequence[Message]) -> list[Request]:
        """Start messages, all at once."""
        if not messages:
            return []
        peers = [peer for _, _, peer in messages]
        try:
            if self._is_batched:
                return [(request, peers) for request in dist.batch_isend_irecv([*map(self._operation, messages)])]
            # What `isend` and `irecv` do, without their checks, which take longer than to start a message.
            return [
                ((self._group.send if is_sent else self._group.recv)([_as_real(part)], peer, TAG), (peer,))
                for is_sent, part, peer in messages
            ]
        except RuntimeError as error:
            raise self._lost(peers, error) from error

    def finish(self, requests: Sequence[Request]) -> None:
        """Wait for messages; raise ConnectionLost if one fails."""
        for request, peers in requests:
            try:
                request.wait()
            except RuntimeError as error:
                raise self._lost(peers, error) from error

    def _operation(self, message: Message) -> Any:
        is_sent, part, peer = message
        return dist.P2POp(dist.isend if is_sent else dist.irecv, part, group=self._group, group_peer=peer)

    def _lost(self, peers: Sequence[int], error: Exception) -> ConnectionLost:
        """Return the error that names the peers: the backend's names addresses at most."""
        names = " or ".join(f"rank {dist.get_global_rank(self._group, peer)}" for peer in sorted(set(peers)))
        return ConnectionLost(f"rank {dist.get_rank()} got no answer from {names} in {self._where}: {error}")


_MEMORY = ThreadLocal()


def _reserve(like: Any, size: int) -> Any:
    """Return an uninitialised tensor. It belongs to this thread until its next call.

    On a CPU its memory is reused, because new memory costs more than an addition: every page is cleared before its
    first use. On a GPU torch does that.
    """
    if like.device.type != "cpu":
        return like.new_empty(size)
    size_bytes = size * like.element_size()
    if getattr(_MEMORY, "bytes", None) is None or _MEMORY.bytes.numel() < size_bytes:
        _MEMORY.bytes = torch.empty(size_bytes, dtype=torch.uint8)
    return _MEMORY.bytes[:size_bytes].view(like.dtype)


def _as_real(tensor: Any) -> Any:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _locate(transfer: Transfer, spans: Sequence[Span]) -> Span:
    return spans[transfer.first][0], spans[transfer.stop - 1][1]


def _count_added(step: Step, spans: Sequence[Span]) -> int:
    located = [_locate(transfer, spans) for transfer in step if transfer.action == "add"]
    return sum(stop - start for start, stop in located)
