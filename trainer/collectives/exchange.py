"""Run the plan of a schedule on a tensor with torch's point-to-point calls: tensors only, nothing is pickled.

Messages of a step are started together, so a rank sends and receives at the same time; NCCL sees them as one group. The
tensor is processed in chunks. Chunk c executes step s in round c * interval + s; in each round, the chunks take turns,
oldest first: wait for what arrives in the previous step, add it, start the next step. While a chunk is added, the
messages of the others are on the wire, and on a CPU also what the chunk itself has sent: a rank waits for that after
the last step.

On a CPU, a rank is ready to receive the messages of a step before it runs that step: gloo then sends them at once;
otherwise, the two ranks first exchange other messages, each of which wakes up gloo's thread. If there is memory, it is
ready for all of them from the start: gloo's thread cannot read that a peer is ready while this rank sends to it, and
polls until then. NCCL runs its groups of messages one after the other.

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

from trainer.collectives.exchange_plan import ExchangePlan, PlannedStep, plan_exchange
from trainer.collectives.schedule import Schedule, Span

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
    run_plan(flat, plan_exchange(schedule, chunks, flat.element_size(), is_early=is_early(flat.device)), group)


def is_early(device: Any) -> bool:
    """Return whether messages are received before the step that needs them."""
    early: bool = device.type == "cpu"
    return early


def run_plan(flat: Any, plan: ExchangePlan, group: Any) -> None:
    """Change a flat tensor in place as the plan of this rank says."""
    if not plan.chunks:
        return
    try:
        _run_chunks(flat, plan, group)
    except BaseException:
        # Peers that are still there may send what this rank expects, as long as the error refers to it.
        _MEMORY.bytes = None
        raise


def _run_chunks(flat: Any, plan: ExchangePlan, group: Any) -> None:
    # Chunks that are in flight together have tags of their own: each has its own order of messages.
    messengers = [Messenger(group, flat.device, tag=TAG + number) for number in range(plan.chunks_in_flight)]
    scratch = _reserve(flat, plan.scratch_elements)
    running = [
        _Chunk(flat, scratch, steps, messengers[index % len(messengers)]) for index, steps in enumerate(plan.chunks)
    ]
    steps, interval = len(plan.chunks[0]), plan.chunk_interval
    for number in range((len(running) - 1) * interval + steps + 1):
        # A chunk takes one turn more than it has steps: in the last one it only finishes.
        oldest = max(0, -((steps - number) // interval)) if interval else 0
        stop = min(len(running), number // interval + 1) if interval else len(running)
        for index in range(oldest, stop):
            step = number - index * interval
            if step:
                running[index].finish(step - 1)
            if step < steps:
                running[index].start(step)


class _Chunk:
    """A part of the tensor on its way through the steps."""

    def __init__(self, flat: Any, scratch: Any, steps: Sequence[PlannedStep], messenger: Messenger) -> None:
        self._flat = flat
        self._scratch = scratch
        self._steps = steps
        self._messenger = messenger
        self._requests: deque[list[Request]] = deque()
        """The messages that a chunk waits for in each step that has started to receive and has not finished."""
        self._sends: list[Request] = []

    def start(self, number: int) -> None:
        """Start to send the messages of a step, and to receive those that are expected from now on."""
        flat, scratch, step = self._flat, self._scratch, self._steps[number]
        sent = [(True, flat[start:stop], peer) for start, stop, peer, _ in step.sends]
        received = [
            [(False, (scratch if is_added else flat)[start:stop], peer) for start, stop, peer, is_added in messages]
            for messages in step.receives
        ]
        if self._messenger.is_batched:
            self._requests.append(self._messenger.start([*received[0], *sent]))
        else:
            self._requests += map(self._messenger.start, received)
            self._sends += self._messenger.start(sent)

    def finish(self, number: int) -> None:
        """Wait for the messages of a step, the oldest, and add what was received to be added, in their order.

        What was sent is waited for after the last step: no later step adds to it, and if one receives into it, the
        message can only come after it has been sent.
        """
        self._messenger.finish(self._requests.popleft())
        for start, stop, scratch_start in self._steps[number].additions:
            self._flat[start:stop].add_(self._scratch[scratch_start : scratch_start + stop - start])
        if number == len(self._steps) - 1:
            self._messenger.finish(self._sends)


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
        self.is_batched = not is_early(device)
        # torch's dispatcher takes a fifth of the time to start a message.
        self._backend: Any = None if self.is_batched else self._group._get_backend(device)

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
                ((self._backend.send if is_sent else self._backend.recv)([_as_real(part)], peer, self._tag), (peer,))
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
