"""Run a schedule on a tensor with torch.distributed's point-to-point calls: tensors only, nothing is pickled.

Messages of a step are started together with `batch_isend_irecv`, so a rank sends and receives at the same time and NCCL
sees them as one group. The tensor is processed in chunks. Chunk c executes step s in round c * interval + s; in each
round, the chunks take turns, oldest first: wait for the messages of the previous step, add them, start the next step.
While a chunk is added, the messages of the others are on the wire.

Every rank goes through the same rounds and chunks in the same order, and a wait is for messages that the peer has
started earlier in this order. So no rank waits in a circle. On a GPU a wait only orders streams: the host launches all
steps without stopping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from trainer.collectives.schedule import Schedule, Span, Step, Transfer

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


TAG = 0x6D75
"""Keeps these messages apart from others between the same ranks, with backends that have tags, as gloo."""


class ConnectionLost(RuntimeError):
    """A message to or from a peer failed or did not arrive within the timeout of the process group.

    The peer that is named has ended, hangs, or has itself lost another one. The group cannot be used any more.
    """


def run_schedule(flat: Any, schedule: Schedule, chunks: Sequence[Sequence[Span]], group: Any) -> None:
    """Change a flat tensor in place as the schedule of this rank says; `chunks` has the span of each block."""
    if not schedule.steps:
        return
    peers = dist.get_process_group_ranks(group)
    # Reused, because new memory costs more than the addition: every page is cleared before its first use.
    size = max(_count_added(step, spans) for step in schedule.steps for spans in chunks)
    scratches = [flat.new_empty(size) for _ in range(min(schedule.chunks_in_flight, len(chunks)))]
    running = [
        _Chunk(flat, spans, scratches[index % len(scratches)], peers, group) for index, spans in enumerate(chunks)
    ]
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

    def __init__(self, flat: Any, spans: Sequence[Span], scratch: Any, peers: Sequence[int], group: Any) -> None:
        self._flat = flat
        self._spans = spans
        self._scratch = scratch
        self._peers = peers
        self._group = group
        self._requests: list[tuple[list[int], Any]] = []
        self._additions: list[tuple[Any, Any]] = []

    def start(self, step: Step) -> None:
        """Start the messages of a step; blocks without elements need none."""
        operations, used = [], 0
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
            call = dist.isend if transfer.action == "send" else dist.irecv
            operations.append(dist.P2POp(call, part, self._peers[transfer.peer], self._group, TAG))
        if not operations:
            return
        peers = [operation.peer for operation in operations]
        with _naming(peers):
            requests = dist.batch_isend_irecv(operations)
        # NCCL has one request for all messages of the step.
        by_request = [[peer] for peer in peers] if len(requests) == len(peers) else [peers] * len(requests)
        self._requests = list(zip(by_request, requests, strict=True))

    def finish(self) -> None:
        """Wait for the messages and add what was received to be added, in the order of the step."""
        for peers, request in self._requests:
            with _naming(peers):
                request.wait()
        for part, message in self._additions:
            part.add_(message)
        self._requests, self._additions = [], []


@contextmanager
def _naming(peers: Sequence[int]) -> Iterator[None]:
    """Name the peers in the error of a message that failed: the backend's names addresses at most."""
    try:
        yield
    except RuntimeError as error:
        names = " or ".join(f"rank {peer}" for peer in sorted(set(peers)))
        raise ConnectionLost(f"rank {dist.get_rank()} got no answer from {names} in a collective: {error}") from error


def _locate(transfer: Transfer, spans: Sequence[Span]) -> Span:
    return spans[transfer.first][0], spans[transfer.stop - 1][1]


def _count_added(step: Step, spans: Sequence[Span]) -> int:
    located = [_locate(transfer, spans) for transfer in step if transfer.action == "add"]
    return sum(stop - start for start, stop in located)
