"""Waiting until every node is usable in Slurm: nodes are resumed, and a dead node is named before the deadline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bootstrap import wait_for_nodes as module
from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Completed, Transport, TransportError
from bootstrap.wait_for_nodes import wait_for_nodes
from cluster.inventory import Node
from tests.bootstrap.clusters import inventory

IDLE = "NodeName=gpu-1 State=IDLE\nNodeName=gpu-2 State=IDLE\n"
GRES = (
    "NodeName=gpu-1 State=IDLE+DRAIN+INVALID_REG Reason=gres/gpu count reported lower [slurm@2026-11-15T03:00:00]\n"
    "NodeName=gpu-2 State=IDLE\n"
)
UNKNOWN = "NodeName=gpu-1 State=UNKNOWN\nNodeName=gpu-2 State=IDLE\n"


class Scripted:
    """A transport that answers each script, and records the scripts."""

    def __init__(self, answer: Callable[[str], Completed]) -> None:
        self.answer, self.scripts = answer, []  # type: tuple[Callable[[str], Completed], list[str]]

    def run(self, script: str, **_: object) -> Completed:
        self.scripts.append(script)
        return self.answer(script)

    def put(self, *_: object) -> None: ...

    def get(self, path: str) -> bytes:
        return path.encode()

    def close(self) -> None: ...


def sequence(*texts: str) -> Callable[[str], Completed]:
    left = list(texts)

    def answer(script: str) -> Completed:
        if not script.startswith("scontrol show"):
            return Completed(0, "", "")
        return Completed(0, left.pop(0) if len(left) > 1 else left[0], "")

    return answer


def opener(controller: Scripted, node: Callable[[str], Completed]) -> Callable[[Node], Transport]:
    return lambda n: controller if n.role == "controller" else Scripted(node)


def fine(_: str) -> Completed:
    return Completed(0, "", "")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.05)


def test_waits_until_every_node_has_registered() -> None:
    controller = Scripted(sequence(UNKNOWN, UNKNOWN, IDLE))
    assert wait_for_nodes(inventory(), opener(controller, fine)) == []
    assert len(controller.scripts) == 3


def test_a_node_whose_drain_reason_is_gone_is_resumed_once() -> None:
    controller = Scripted(sequence(GRES, GRES, IDLE))
    assert wait_for_nodes(inventory(), opener(controller, fine)) == ["gpu-1"]
    assert [a for a in controller.scripts if "update" in a] == ["scontrol update nodename=gpu-1 state=resume"]


def test_a_node_that_stays_unusable_is_named_with_reason_and_log_line() -> None:
    def log_line(_: str) -> Completed:
        return Completed(0, "", "error: Couldn't find the specified plugin name")

    with pytest.raises(BootstrapError) as caught:
        wait_for_nodes(inventory(), opener(Scripted(sequence(GRES)), log_line), deadline_s=0.01)
    text = str(caught.value)
    assert text.startswith(
        "node gpu-1, step nodes: Slurm shows the node as idle+drain+invalid_reg, reason: gres/gpu count"
    )
    assert "slurmd's log: error: Couldn't find the specified plugin name" in text
    assert "Log: /var/log/slurm/slurmd.log. Fix: see `scontrol show node gpu-1`" in text


def test_a_node_that_dies_is_named_before_the_deadline() -> None:
    def dead(_: str) -> Completed:
        raise TransportError("gpu-1", "the connection was lost")

    with pytest.raises(BootstrapError, match="node gpu-1, step nodes: the connection was lost"):
        wait_for_nodes(inventory(), opener(Scripted(sequence(UNKNOWN)), dead), deadline_s=30)


def test_a_slurmd_that_stopped_is_named_before_the_deadline() -> None:
    def stopped(_: str) -> Completed:
        return Completed(1, "", "fatal: Hybrid mode is not supported")

    with pytest.raises(BootstrapError, match="slurmd stopped: fatal: Hybrid mode is not supported"):
        wait_for_nodes(inventory(), opener(Scripted(sequence(UNKNOWN)), stopped), deadline_s=30)
