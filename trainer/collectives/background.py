"""Run the collectives of a process group one after another in a background thread, so that they overlap with backward.

Every group has its own queue. Its thread starts with the first asynchronous collective, takes them in the order of the
calls and ends if there is none for a while. Waiting for messages releases Python's global lock, so backward continues
on the calling thread. Ranks that call the same collectives in the same order therefore also run them in the same order.

A synchronous collective runs on the calling thread if the queue is empty, and otherwise takes its place in it.

On a GPU the thread only launches kernels. They go to a separate stream that starts after what the calling thread had
launched before, and `wait` makes the caller's stream wait for them, not the host. Every queue has its own stream: ranks
may interleave two groups differently, so the kernels of one group must not wait behind those of another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed

from trainer.collectives.exchange import ConnectionLost

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
cuda: Any = torch.cuda

IDLE_S = 10.0
"""A thread without work ends after this time; starting another takes less than a millisecond."""


OnEnd = Callable[[Exception | None], None]
"""Called when a collective has ended, with the error that prevented its result."""


class Handle:
    """A collective that was started. Its tensors must not be used or freed before `wait` has returned."""

    def __init__(self, action: Callable[[], None], device: Any, on_end: OnEnd | None = None) -> None:
        self._action: Callable[[], None] | None = action
        self._on_end = on_end
        self.device = device
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._ready = cuda.current_stream(device).record_event() if device.type == "cuda" else None
        self._done: Any = None

    def wait(self) -> None:
        """Wait for the result, or raise the error that prevented it; may be called more than once."""
        self._ended.wait()
        if self._error:
            raise self._error
        if self._done:
            cuda.current_stream(self.device).wait_event(self._done)

    def is_completed(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return self._ended.is_set() and (self._done is None or self._done.query())

    def run(self, earlier_failure: Exception | None, stream: Any) -> Exception | None:
        """Run the collective unless an earlier one broke the group, and return the error that broke it.

        Its kernels go to the stream, which is None on a CPU.
        """
        try:
            if earlier_failure:
                raise ConnectionLost(f"an earlier collective of this process group failed: {earlier_failure}")
            self._run_on_stream(stream)
        except Exception as error:
            self._error = error
            return error if isinstance(error, ConnectionLost) else None
        else:
            return None
        finally:
            # The action refers to the tensors, which would otherwise live as long as the handle.
            self._action = None
            self._ended.set()
            if self._on_end:
                self._on_end(self._error)

    def _run_on_stream(self, stream: Any) -> None:
        with cuda.stream(stream) if stream else nullcontext():
            if stream:
                stream.wait_event(self._ready)
            if self._action:
                self._action()
            if stream:
                self._done = stream.record_event()


class Queue:
    """The collectives of a process group that have not ended, oldest first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._handles: deque[Handle] = deque()
        self._is_oldest_synchronous = False
        """Whether the oldest collective runs on the thread that called it."""
        self._streams: dict[Any, Any] = {}
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def submit(self, handle: Handle) -> None:
        """Run a collective in the background after those that were submitted before."""
        with self._changed:
            self._handles.append(handle)
            self._changed.notify()
            if self._thread is None:
                # A daemon, because a rank that fails must be able to exit while a collective waits for its peers.
                self._thread = threading.Thread(target=self._run, name="collectives", daemon=True)
                self._thread.start()

    def run(self, handle: Handle) -> None:
        """Run a collective on this thread, if no other one is waiting or running, or else in its turn."""
        with self._changed:
            is_idle = not self._handles
            if is_idle:
                self._handles.append(handle)
                self._is_oldest_synchronous = True
        if is_idle:
            self._run_oldest()
        else:
            self.submit(handle)

    def _run(self) -> None:
        while True:
            with self._changed:
                is_ready = self._changed.wait_for(lambda: self._handles and not self._is_oldest_synchronous, IDLE_S)
                if not self._handles:
                    self._thread = None
                    return
            if is_ready:
                self._run_oldest()

    def _run_oldest(self) -> None:
        """Run the oldest collective, which stays in the queue until its end, so that no other one runs meanwhile."""
        with self._changed:
            handle, failure = self._handles[0], self._failure
        try:
            failure = handle.run(failure, self._stream_on(handle.device)) or failure
        finally:
            with self._changed:
                self._failure = failure
                self._handles.popleft()
                self._is_oldest_synchronous = False
                self._changed.notify()

    def _stream_on(self, device: Any) -> Any:
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        return self._streams[device]


def launch(
    action: Callable[[], None], group: Any, device: Any, *, async_op: bool, on_end: OnEnd | None = None
) -> Handle | None:
    """Run a collective of the group in its turn; return a handle, or None after its end if it is not asynchronous."""
    handle = Handle(action, device, on_end)
    queue = _queue_of(group)
    if async_op:
        queue.submit(handle)
        return handle
    queue.run(handle)
    handle.wait()
    return None


_QUEUES: WeakKeyDictionary[Any, Queue] = WeakKeyDictionary()
_QUEUES_LOCK = threading.Lock()


def _queue_of(group: Any) -> Queue:
    group = group or dist.group.WORLD
    with _QUEUES_LOCK:
        return _QUEUES.setdefault(group, Queue())
