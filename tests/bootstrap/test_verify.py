"""verify: what the nodes said, turned into failures that name the node that is meant, not the one that was asked."""

from __future__ import annotations

import time

import pytest

from bootstrap import verify as module
from bootstrap.transport.base import Completed
from bootstrap.verify import verify
from cluster.inventory import Node
from tests.bootstrap.clusters import desired, done_all

WANTED = desired()
NAMES = "".join(f"name\t{n.address}\t{n.name}\naddress\t{n.address}\t{n.name}\n" for n in WANTED.inventory.nodes)
IDLE = "NodeName=gpu-1 State=IDLE\nNodeName=gpu-2 State=IDLE\n"


class Answering:
    def __init__(self, node: Node, said: str) -> None:
        self._out = NAMES + (said if node.role == "controller" else "")

    def run(self, script: str, **_: object) -> Completed:
        return Completed(0, f"{time.time()}\n" if script.startswith("date") else self._out, "")

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = done_all(WANTED)
    monkeypatch.setattr(module, "collect", lambda _t, node, _d: facts[node.name])


def failures(said: str) -> list[tuple[str, str, str]]:
    found = verify(WANTED, lambda n: Answering(n, said), patience_s=0)  # type: ignore[arg-type,return-value]
    return [(f.node, f.check, f.line) for f in found]


def test_nothing_to_complain_of() -> None:
    assert failures(IDLE) == []


def test_a_slurmd_that_does_not_listen_is_named_although_slurmctld_has_it_as_idle() -> None:
    said = IDLE + "silent\tgpu-2\tdoes not answer on its port\n"
    assert failures(said) == [("gpu-2", "slurmd", "does not answer on its port")]


def test_states_are_told_in_slurms_words_and_a_drained_node_is_let_be() -> None:
    said = (
        "NodeName=gpu-1 State=DOWN* Reason=Not responding [slurm@2026]\n"
        "NodeName=gpu-2 State=IDLE+DRAIN Reason=fan broken [bob@2026]\n"
    )
    assert failures(said) == [("gpu-1", "state", "down+not_responding Not responding")]


def test_every_compute_node_is_asked_from_the_controller() -> None:
    controller, asked = WANTED.inventory.controller, []

    class Keeping(Answering):
        def run(self, script: str, **more: object) -> Completed:
            asked.append(script)
            return super().run(script, **more)

    verify(WANTED, lambda n: (Keeping if n == controller else Answering)(n, IDLE), patience_s=0)  # type: ignore[arg-type,return-value]
    assert "for node in gpu-1:10.1.0.21 gpu-2:10.1.0.22; do" in asked[-1]
