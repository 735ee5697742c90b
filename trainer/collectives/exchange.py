"""Run a schedule on a tensor with torch.distributed's point-to-point calls: tensors only, nothing is pickled.

Messages of a step are started together, so a rank sends and receives at the same time; NCCL sees them as one group. The
tensor is processed in chunks. Chunk c executes step s in round c * interval + s; in each round, the chunks take turns,
oldest first: wait for the messages of the previous step, add them, start the next step. While a chunk is added, the
messages of the others are on the wire.

On a CPU, a rank is ready to receive the messages of a step before it runs that step: gloo then sends them at once.

Every rank goes through the same rounds and chunks in the same order, and a wait is for messages that the peer has
started earlier in this order. So no rank waits in a circle. On a GPU a wait only orders streams: the host launches all
steps without stopping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import local as ThreadLocal
from typing import Any

import torch
import torch.distributed

from trainer.collectives.schedule import Action, Schedule, Span, Step, Transfer

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

TAG = 0x6D75
"""Keeps these messages apart from others between the same ranks, with backends that have tags, such as gloo."""


EARLY_BYTES = 16 << 20
"""Memory for messages that arrive before they are needed; two steps of each chunk may take more."""


class ConnectionLost(RuntimeError):
    """A message to or from a peer failed or did not arrive within the timeout of the process group.

    The peer that is named has ended, hangs, or has itself lost another one. The group cannot be used any more.
    """


def run_schedule(flat: Any, schedule: Schedule, chunks: Sequence[Sequence[Span]], group: Any) -> None:
    """Change a flat tensor in place as the schedule of this rank says; `chunks` has the span of each block."""
    if not schedule.steps:
        return
    count = min(schedule.chunks_in_flight, len(chunks))
    # Chunks that are in flight together have tags of their own: each has its own order of messages.
    messengers = [Messenger(group, flat.device, tag=TAG + number) for number in range(count)]
    size = max(_count_added(step, spans) for step in schedule.steps for spans in chunks)
    ahead = choose_steps_ahead(len(schedule.steps), count * size * flat.element_size(), flat.device)
    scratches = _reserve(flat, count * (1 + ahead) * size).view(count, 1 + ahead, size)
    running = [
        _Chunk(flat, schedule.steps, spans, scratches[index % count], messengers[index % count])
        for index, spans in enumerate(chunks)
    ]
    steps, interval = len(schedule.steps), schedule.chunk_interval
    for number in range((len(chunks) - 1) * interval + steps + 1):
        # A chunk takes one turn more than it has steps: in the last one it only finishes.
        oldest = max(0, -((steps - number) // interval))
        for index in range(oldest, min(len(chunks), number // interval + 1)):
            step = number - index * interval
            running[index].finish()
            if step < steps:
                running[index].start(step)


def choose_steps_ahead(steps: int, scratch_bytes: int, device: Any) -> int:
    """Return how many steps before its use a message is received, if a step needs so many bytes to add from.

    gloo sends a message at once if its receiver waits for it; otherwise, the two first exchange other messages, each of
    which wakes up gloo's thread. NCCL runs its groups of messages one after the other.
    """
    if device.type != "cpu":
        return 0
    return max(1, min(steps, EARLY_BYTES // max(1, scratch_bytes)) - 1)


class _Chunk:
    """A part of the tensor on its way through the steps."""

    def __init__(
        self, flat: Any, steps: Sequence[Step], spans: Sequence[Span], scratches: Any, messenger: Messenger
    ) -> None:
        self._flat = flat
        self._steps = steps
        self._spans = spans
        self._messenger = messenger
        self._scratches = scratches
        """A step adds from one of them, while messages of the next steps arrive in the others."""
        self._requests: deque[list[Request]] = deque()
        """The messages of each step that has started to receive and has not finished."""
        self._additions: deque[list[tuple[Any, Any]]] = deque()

    def start(self, number: int) -> None:
        """Start to send the messages of a step, and to receive those of the next ones; empty blocks need none."""
        sent = [(True, part, peer) for _, part, peer in self._locate_messages(number, "send")]
        stop = min(number + len(self._scratches), len(self._steps))
        received = [self._plan_receives(step) for step in range(number + len(self._requests), stop)]
        if self._messenger.is_batched:
            self._requests.append(self._messenger.start([*received[0], *sent]))
        else:
            self._requests += map(self._messenger.start, received)
            self._requests[0] += self._messenger.start(sent)

    def finish(self) -> None:
        """Wait for the messages of the oldest step and add what was received to be added, in the order of the step."""
        if self._requests:
            self._messenger.finish(self._requests.popleft())
            for part, message in self._additions.popleft():
                part.add_(message)

    def _plan_receives(self, number: int) -> list[Message]:
        """Return what a step receives, and remember what it adds."""
        scratch, used = self._scratches[number % len(self._scratches)], 0
        received: list[Message] = []
        additions = []
        # In the order of the step, which is that in which the peers send.
        for action, part, peer in self._locate_messages(number, "receive", "add"):
            message = part
            if action == "add":
                message = scratch[used : used + len(part)]
                used += len(part)
                additions.append((part, message))
            received.append((False, message, peer))
        self._additions.append(additions)
        return received

    def _locate_messages(self, number: int, *actions: Action) -> list[tuple[Action, Any, int]]:
        """Return action, part of the tensor and peer of the transfers of a step with these actions; none is empty."""
        transfers = [transfer for transfer in self._steps[number] if transfer.action in actions]
        spans = [(transfer, *_locate(transfer, self._spans)) for transfer in transfers]
        return [(each.action, self._flat[start:stop], each.peer) for each, start, stop in spans if start < stop]


Message = tuple[bool, Any, int]
"""(is_sent, tensor, rank of the peer in the group)."""
Request = tuple[Any, Sequence[int]]
"""A request of the backend, and the peers to name if it fails."""


class Messenger:
    """Starts messages and waits for them; errors say where they were exchanged."""

    def __init__(self, group: Any, device: Any, where: str = "a collective", tag: int = TAG) -> None:
        self._where = where
        self._group = group or dist.group.WORLD
        self._tag = tag
        self.is_batched = device.type != "cpu"

    def start(self, messages: Sequence[Message]) -> list[Request]:
        """Start messages, all at once."""
        if not messages:
            return []
        peers = [peer for _, _, peer in messages]
        try:
            if self.is_batched:
                return [(request, peers) for request in dist.batch_isend_irecv([*map(self._operation, messages)])]
            # What `isend` and `irecv` do, without their checks, which take longer than to start a message.
            return [
                ((self._group.send if is_sent else self._group.recv)([_as_real(part)], peer, self._tag), (peer,))
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
