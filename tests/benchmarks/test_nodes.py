"""Nodes of benchmarks: a status of one that failed, and a first node that never comes."""

from __future__ import annotations

import socket
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import node_link, nodes


@pytest.mark.parametrize(("statuses", "status"), [([0, 0], 0), ([0, 3], 3), ([0, -9], 9), ([1, -9], 9)])
def test_a_node_that_was_killed_is_a_failure(statuses: list[int], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter(statuses)

    def start(_command: list[str]) -> Any:
        end = next(ends)
        return SimpleNamespace(wait=lambda: end)

    monkeypatch.setattr(nodes.signal, "signal", lambda *_: None)
    monkeypatch.setattr(nodes, "_make_command", lambda *_: [])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert nodes.run_on_nodes("test", "module", []) == status


def test_a_first_node_without_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> str:
        raise OSError("unknown")

    monkeypatch.setenv("MASTER_ADDR", "first")
    monkeypatch.setattr(socket, "gethostbyname", fail)
    monkeypatch.setattr(node_link, "_POLL_S", 0.0)
    with pytest.raises(OSError, match=r"^MASTER_ADDR: first has no address after 0 s; has the first node ended\?$"):
        node_link.wait_for_first_node()
