"""Connections to all nodes, and work on many of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TypeVar

from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Transport, TransportError
from cluster.inventory import Node

# Key exchange runs in Python and holds the interpreter lock, so more threads than this would only wait.
WORKERS = 16
T = TypeVar("T")
Connect = Callable[[Node], Transport]


class Sessions:
    """Connections to nodes, one per node. Leaving the context closes them, which ends scripts that still run."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: dict[str, Transport] = {}
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="bootstrap")

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for transport in list(self._open.values()):
            transport.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def open(self, node: Node) -> Transport:
        """Return the connection to a node; connect on first use."""
        if node.name not in self._open:
            try:
                self._open[node.name] = self._connect(node)
            except TransportError as error:
                raise BootstrapError(node.name, "connect", error.line, fix=error.fix) from None
        return self._open[node.name]

    def run_together(self, work: Callable[[Node], T], nodes: Iterable[Node]) -> list[T]:
        """Run `work` on all nodes at the same time, with a thread for each, and return the results in order.

        Unlike with `submit`, none waits until another one has ended. The nodes should be connected already.
        """
        listed = list(nodes)
        pool = ThreadPoolExecutor(len(listed), thread_name_prefix="together")
        try:
            return wait_for_all([pool.submit(work, node) for node in listed])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, work: Callable[[Node], T], node: Node) -> Future[T]:
        """Run `work` on a node in the thread pool."""
        return self._pool.submit(work, node)


class SharedConnections:
    """Connections that several runs share, e.g. apply and the following verify; only `close` ends them."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: dict[str, Transport] = {}

    def connect(self, node: Node) -> Transport:
        """Return a transport over the shared connection, which the caller cannot close."""
        if node.name not in self._open:
            self._open[node.name] = self._connect(node)
        return _BorrowedTransport(self._open[node.name])

    def close(self) -> None:
        for transport in self._open.values():
            transport.close()


class _BorrowedTransport:
    """A transport over a shared connection, whose `close` does nothing."""

    def __init__(self, transport: Transport) -> None:
        self.run, self.put, self.get = transport.run, transport.put, transport.get

    def close(self) -> None:
        """Do nothing: the owner closes the connection."""


def wait_for_all(futures: Iterable[Future[T]]) -> list[T]:
    """Return the results in order; raise the first error, which also names other nodes that have failed by then."""
    listed = list(futures)
    done, _ = wait(listed, return_when=FIRST_EXCEPTION)
    errors = [error for future in listed if future in done and (error := future.exception()) is not None]
    if errors:
        raise _merge(errors)
    return [future.result() for future in listed]


def _merge(errors: list[BaseException]) -> BaseException:
    first, *others = errors
    if isinstance(first, BootstrapError) and others:
        also = ", ".join(sorted({e.node for e in others if isinstance(e, BootstrapError)} - {first.node}))
        if also:
            line = f"{first.line.rstrip('.')} (also failed: {also})"
            return BootstrapError(first.node, first.step, line, first.log, first.fix)
    return first
