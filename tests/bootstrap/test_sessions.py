"""Work on many nodes at once: results in order, merged errors, and connections that outlive a run."""

from __future__ import annotations

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.sessions import Sessions, SharedConnections, wait_for_all
from bootstrap.transport.base import Transport, TransportError
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Node
from tests.bootstrap.clusters import inventory


class Counted(LocalTransport):
    closed = 0

    def close(self) -> None:
        Counted.closed += 1


def test_results_are_in_the_order_of_the_nodes() -> None:
    with Sessions(lambda _: LocalTransport()) as sessions:
        work = [
            sessions.submit(lambda n: sessions.open(n).run(f"echo {n.name}").out.strip(), n) for n in inventory().nodes
        ]
        assert wait_for_all(work) == ["controller", "login", "gpu-1", "gpu-2"]


def test_the_error_names_the_other_failed_nodes() -> None:
    def work(node: Node) -> None:
        raise BootstrapError(node.name, "users", "no space left", "/log", "free some")

    with Sessions(lambda _: LocalTransport()) as sessions:
        futures = [sessions.submit(work, n) for n in inventory().compute]
        for future in futures:
            future.exception()
        with pytest.raises(BootstrapError) as caught:
            wait_for_all(futures)
    text = "node gpu-1, step users: no space left (also failed: gpu-2). Log: /log. Fix: free some."
    assert str(caught.value) == text


def test_an_unreachable_node_is_an_error_of_the_connect_step() -> None:
    def connect(node: Node) -> Transport:
        raise TransportError(node.name, "connection refused", "start it")

    with (
        Sessions(connect) as sessions,
        pytest.raises(BootstrapError, match=r"node login, step connect: connection refused\. Fix: start it"),
    ):
        sessions.open(inventory().login)


def test_shared_connections_are_opened_once_and_closed_by_their_owner() -> None:
    connected: list[str] = []

    def connect(node: Node) -> Transport:
        connected.append(node.name)
        return Counted()

    connections = SharedConnections(connect)
    for _ in range(2):
        with Sessions(connections.connect) as sessions:
            assert sessions.open(inventory().login).run("echo hi").out == "hi\n"
    assert (connected, Counted.closed) == (["login"], 0)
    connections.close()
    assert Counted.closed == 1
