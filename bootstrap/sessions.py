"""The connections to all nodes, and work done on many of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TypeVar

from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Transport, TransportError
from cluster.inventory import Node

# Key exchange is Python and holds the interpreter: more threads than this only queue.
WORKERS = 16
T = TypeVar("T")
Connect = Callable[[Node], Transport]


class Sessions:
    """Holds one connection per node; leaving closes them all, which also ends what still runs on them."""

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
        """The node's connection; made on first use."""
        if node.name not in self._open:
            try:
                self._open[node.name] = self._connect(node)
            except TransportError as problem:
                raise BootstrapError(node.name, "connect", problem.line, fix=problem.fix) from None
        return self._open[node.name]

    def submit(self, work: Callable[[Node], T], node: Node) -> Future[T]:
        return self._pool.submit(work, node)


class Kept:
    """Connections that outlive one run: apply and verify after it share them. `close` ends them all."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open: dict[str, Transport] = {}

    def connect(self, node: Node) -> Transport:
        if node.name not in self._open:
            self._open[node.name] = self._connect(node)
        return _Lent(self._open[node.name])

    def close(self) -> None:
        for transport in self._open.values():
            transport.close()


class _Lent:
    """A connection that its borrower cannot close."""

    def __init__(self, transport: Transport) -> None:
        self.run, self.put, self.get = transport.run, transport.put, transport.get

    def close(self) -> None:
        """The owner does."""


def finish(futures: Iterable[Future[T]]) -> list[T]:
    """Results in order; the first failure ends the wait, with those of other nodes named beside it."""
    listed = list(futures)
    done, _ = wait(listed, return_when=FIRST_EXCEPTION)
    problems = [p for f in listed if f in done and (p := f.exception()) is not None]
    if problems:
        raise _joined(problems)
    return [f.result() for f in listed]


def _joined(problems: list[BaseException]) -> BaseException:
    first, *others = problems
    if isinstance(first, BootstrapError) and others:
        also = ", ".join(sorted({p.node for p in others if isinstance(p, BootstrapError)} - {first.node}))
        if also:
            return BootstrapError(
                first.node, first.step, f"{first.line.rstrip('.')} (failed as well: {also})", first.log, first.fix
            )
    return first
