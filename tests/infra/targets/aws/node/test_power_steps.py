"""Steps for power saving on AWS: the sweep that launches nodes, and the topology of the nodes that exist."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from bootstrap.action import digest
from bootstrap.facts.model import FileFact
from bootstrap.steps import controller, registry
from bootstrap.steps.cloud import power
from cluster.inventory import Node
from infra.targets.aws.node import set_up
from slurm.config.blocks import render_blocks
from tests.infra.targets.aws.node.clusters import cloud, desired, ubuntu
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU, LOGIN, titles


@pytest.mark.parametrize(
    ("node", "end"),
    [(CONTROLLER, ["check", registry.CHECKED]), (LOGIN, ["check"]), (GPU, ["check"])],
    ids=["controller", "login", "compute"],
)
def test_the_sweep_starts_after_the_check(node: Node, end: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """It launches nodes that are missing, which would be billed although the set-up of the controller failed."""
    order: list[object] = []
    monkeypatch.setattr(set_up, "_run_stage", lambda *arguments, **_: order.append(arguments[3]))
    monkeypatch.setattr(set_up, "check_machine", lambda *_: order.append("check"))
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "")
    monkeypatch.setattr(set_up.Reporter, "report", lambda *_: None)
    assert set_up.set_up(node, desired(), cloud(), set_up.Reporter("", "", "")) == ""
    assert order == [registry.KERNEL, registry.MACHINE, registry.select_after_machine(node.role), *end]
    assert power.SWEEP_STEP in registry.CHECKED


def test_a_machine_with_another_kernel_installs_its_packages_and_restarts_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[object] = []
    monkeypatch.setattr(set_up, "_run_stage", lambda *arguments, **_: order.append(arguments[3]))
    monkeypatch.setattr(set_up, "_has_chosen_kernel", lambda _: True)
    monkeypatch.setattr("bootstrap.restart.read_request", lambda _: "another kernel" if len(order) > 1 else "")
    assert set_up.set_up(GPU, desired(), cloud(), set_up.Reporter("", "", "")) == "another kernel"
    assert order == [registry.KERNEL, registry.WITH_KERNEL]


def test_the_timer_of_the_sweep_is_started_by_its_own_step() -> None:
    assert "start muster-sweep.timer" not in titles(power.STEP, ubuntu(), CONTROLLER, desired())
    assert titles(power.SWEEP_STEP, ubuntu(), CONTROLLER, desired())[-1] == "start muster-sweep.timer"


def test_only_the_first_topology_is_written() -> None:
    path = "/etc/slurm/topology.conf"
    assert f"write {path}" in titles(power.STEP, ubuntu(), CONTROLLER, desired())
    files = {path: FileFact("another", 0o644, "slurm:slurm")}
    adapt = "adapt topology.conf to the nodes"
    assert f"write {path}" not in titles(power.STEP, ubuntu(files=files), CONTROLLER, desired())
    same = ubuntu(files=files, markers={"topology": digest("gpu-[1-4]")})
    assert adapt not in titles(power.STEP, same, CONTROLLER, desired())
    # If a group has grown, Slurm reads both files together, right after this step.
    fewer = ubuntu(files=files, markers={"topology": digest("gpu-[1-3]")})
    (action,) = [a for a in power.STEP.actions(fewer, CONTROLLER, desired()) if a.title == adapt]
    assert "-m slurm.power.topology 'gpu-[1-4]'" in action.script
    steps = registry.select_after_machine("controller")
    assert steps.index(power.STEP) < steps.index(controller.STEP)


def test_blocks_are_written_whenever_they_change() -> None:
    path = "/etc/slurm/topology.conf"
    sets = tuple(nodes.model_copy(update={"ultraserver": True}) for nodes in desired().inventory.sets)
    target = replace(desired(), inventory=desired().inventory.model_copy(update={"sets": sets}))
    blocks = render_blocks(sets)
    record = "record the blocks of topology.conf"
    marker = {"topology": digest("gpu-[1-4]")}
    switches = ubuntu(files={path: FileFact("switches", 0o644, "slurm:slurm")}, markers=marker)
    assert {f"write {path}", record} <= set(titles(power.STEP, switches, CONTROLLER, target))
    content = FileFact(sha256(blocks.encode()).hexdigest(), 0o644, "slurm:slurm")
    written = ubuntu(files={path: content}, markers={"topology": digest(blocks)})
    assert not {f"write {path}", record} & set(titles(power.STEP, written, CONTROLLER, target))
    # Without UltraServers, the file becomes one of switches again.
    assert "adapt topology.conf to the nodes" in titles(power.STEP, written, CONTROLLER, desired())
