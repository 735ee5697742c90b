"""`verify` turns the nodes' output into failures that name the broken node, even if another node reported it."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256

import pytest

from bootstrap import verify as module
from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Completed
from bootstrap.verify import verify
from cluster.inventory import Node
from tests.bootstrap.clusters import desired, done_all

TARGET = desired()
NAMES = "".join(f"name\t{n.address}\t{n.name}\naddress\t{n.address}\t{n.name}\n" for n in TARGET.inventory.nodes)
IDLE = "NodeName=gpu-1 State=IDLE\nNodeName=gpu-2 State=IDLE\n"


class Answering:
    def __init__(self, node: Node, output: str) -> None:
        self._out = NAMES + (output if node.role == "controller" else "")

    def run(self, script: str, **_: object) -> Completed:
        return Completed(0, f"{time.time()}\n" if script.startswith("date") else self._out, "")

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = done_all(TARGET)
    monkeypatch.setattr(module, "collect_facts", lambda _t, name, _p: facts[name])


def failures(output: str) -> list[tuple[str, str, str]]:
    failed = verify(TARGET, lambda n: Answering(n, output), retry_for_s=0)  # type: ignore[return-value]  # a stand-in with only the methods that are called
    return [(f.node, f.check, f.line) for f in failed]


def test_a_healthy_cluster_has_no_failures() -> None:
    assert failures(IDLE) == []


def test_a_slurmd_that_does_not_answer_fails_even_if_slurmctld_shows_it_idle() -> None:
    output = IDLE + "silent\tgpu-2\tdoes not answer on its port\n"
    assert failures(output) == [("gpu-2", "slurmd", "does not answer on its port")]


def test_a_node_that_is_down_fails_and_one_that_a_person_drained_does_not() -> None:
    output = (
        "NodeName=gpu-1 State=DOWN* Reason=Not responding [slurm@2026]\n"
        "NodeName=gpu-2 State=IDLE+DRAIN Reason=fan broken [bob@2026]\n"
    )
    assert failures(output) == [("gpu-1", "state", "down+not_responding Not responding")]


def test_the_configuration_has_the_kind_of_cgroup_of_the_compute_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's differs: it runs no jobs."""
    facts = {name: replace(each, cgroup="v2") for name, each in done_all(TARGET).items()}
    facts["gpu-1"] = facts["gpu-2"] = replace(facts["gpu-1"], cgroup="v1")
    monkeypatch.setattr(module, "collect_facts", lambda _t, name, _p: facts[name])
    scripts: list[str] = []

    class Recording(Answering):
        def run(self, script: str, **more: object) -> Completed:
            scripts.append(script)
            return super().run(script, **more)

    verify(TARGET, lambda n: Recording(n, IDLE), retry_for_s=0)  # type: ignore[return-value]  # a stand-in with only the methods that are called
    conf = replace(TARGET, cgroup="v1").slurm_files[module.CONF].content
    digest = sha256(conf.encode()).hexdigest()
    checks = [script for script in scripts if "fail configuration" in script]
    assert len(checks) == len(TARGET.inventory.nodes)
    assert all(digest in script for script in checks)


def test_a_compute_node_without_cgroups_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = done_all(TARGET)
    facts["gpu-2"] = replace(facts["gpu-2"], cgroup="none")
    monkeypatch.setattr(module, "collect_facts", lambda _t, name, _p: facts[name])
    with pytest.raises(BootstrapError, match="node gpu-2, step cgroups"):
        failures(IDLE)


def test_every_compute_node_is_probed_from_the_controller() -> None:
    controller, scripts = TARGET.inventory.controller, []

    class Recording(Answering):
        def run(self, script: str, **more: object) -> Completed:
            scripts.append(script)
            return super().run(script, **more)

    verify(TARGET, lambda n: (Recording if n == controller else Answering)(n, IDLE), retry_for_s=0)  # type: ignore[return-value]  # a stand-in with only the methods that are called
    assert "printf '%s\\n' gpu-1:10.1.0.21 gpu-2:10.1.0.22 | xargs" in scripts[-1]
