"""topology.conf lists exactly the nodes of slurm.conf, whether or not their places in the network are known."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.inventory import NodeSet
from slurm.config.blocks import render_blocks
from slurm.config.topology import check_topology, fit_topology, render_topology
from slurm.control.nodes import NodeState
from slurm.power.context import Context
from slurm.power.programs import resume
from slurm.power.sweep import is_reconfigure_due, sweep
from tests.harness import REPO
from tests.moto_server import Moto
from tests.slurm.power.cluster import Clock, FakeSlurm

NODES = [f"gpu-{n}" for n in range(1, 7)]
ULTRASERVER = NodeSet(group="gpu", count=6, static=0, cpus=4, memory_mb=8192, ultraserver=True)
PLACES = st.dictionaries(
    st.sampled_from(NODES),
    st.sampled_from([("t", "m", "a"), ("t", "m", "b"), ("t", "a2", "a3", "c"), ("t", "m"), ("t", "a2")]),
)


def test_three_and_four_layers_and_nodes_without_a_place() -> None:
    places = {
        "gpu-1": ("top", "mid", "leaf-1"),
        "gpu-2": ("top", "mid", "leaf-1"),
        "gpu-3": ("top", "mid", "leaf-2"),
        "gpu-4": ("top", "mid", "leaf-2", "rack-9"),
    }
    assert render_topology(NODES, places).splitlines()[1:] == [
        "SwitchName=leaf-1 Nodes=gpu-[1-2]",
        "SwitchName=leaf-2-nodes Nodes=gpu-3",
        "SwitchName=rack-9 Nodes=gpu-4",
        "SwitchName=unplaced Nodes=gpu-[5-6]",
        "SwitchName=all Switches=top,unplaced",
        "SwitchName=leaf-2 Switches=leaf-2-nodes,rack-9",
        "SwitchName=mid Switches=leaf-1,leaf-2",
        "SwitchName=top Switches=mid",
    ]


@given(PLACES)
def test_every_set_of_places_gives_a_valid_file(places: dict[str, tuple[str, ...]]) -> None:
    assert check_topology(render_topology(NODES, places), NODES) == []


@given(PLACES)
def test_fitting_keeps_the_places_of_nodes_that_stay(places: dict[str, tuple[str, ...]]) -> None:
    before = render_topology(NODES, places)
    assert fit_topology(before, NODES) == before
    fewer, more = NODES[:3], [*NODES, "gpu-7"]
    assert fit_topology(before, fewer) == render_topology(
        fewer, {name: place for name, place in places.items() if name in fewer}
    )
    assert fit_topology(before, more) == render_topology(more, places)


def test_the_program_fits_the_file_to_the_nodes(tmp_path: Path) -> None:
    path = tmp_path / "etc/slurm/topology.conf"
    path.parent.mkdir(parents=True)
    path.write_text(render_topology(["gpu-1", "gpu-2"], {"gpu-1": ("top", "leaf")}))
    environment = {**os.environ, "MUSTER_ROOT": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "slurm.power.topology", "gpu-[1,3]"], cwd=REPO, env=environment, check=True)
    assert path.read_text() == render_topology(["gpu-1", "gpu-3"], {"gpu-1": ("top", "leaf")})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SwitchName=all Nodes=gpu-[1-5]", "gpu-6 is missing"),
        ("SwitchName=all Nodes=gpu-[1-7]", "gpu-7 is not a node"),
        (
            "SwitchName=a Nodes=gpu-[1-6]\nSwitchName=b Nodes=gpu-6\nSwitchName=all Switches=a,b",
            "gpu-6 is listed twice",
        ),
        ("SwitchName=a Nodes=gpu-[1-6]\nSwitchName=all Switches=a,b", "switch b is not defined"),
        (
            "SwitchName=a Nodes=gpu-[1-6]\nSwitchName=all Switches=a\nSwitchName=c Switches=a",
            "switch a is listed twice",
        ),
        ("SwitchName=a Nodes=gpu-[1-6]", "switch a is under no other"),
    ],
)
def test_invalid_files_are_detected(text: str, problem: str) -> None:
    assert problem in check_topology(text, NODES)


def test_contradictory_places_leave_the_file_unchanged(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    up = resume(context, ["gpu-1", "gpu-2"], []).up
    slurm.states |= {"gpu-1": "IDLE+CLOUD", "gpu-2": "IDLE+CLOUD"}
    aws.place(up["gpu-1"].id, "top", "x", "leaf")
    aws.place(up["gpu-2"].id, "top", "y", "leaf")
    _enable_topology(context)
    sweep(context)
    assert _read_topology(context) == render_topology(NODES, {})
    assert slurm.commands == []


def test_the_file_follows_the_machines(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    up = resume(context, ["gpu-1", "gpu-2"], []).up
    slurm.states |= dict.fromkeys(("gpu-1", "gpu-2"), "IDLE+CLOUD") | {"gpu-3": "IDLE+CLOUD+POWERED_DOWN"}
    aws.place(up["gpu-1"].id, "top", "mid", "leaf-1")
    aws.place(up["gpu-2"].id, "top", "mid", "leaf-2")
    sweep(context)
    assert aws.of("DescribeInstanceTopology") == [], "without the topology plugin, places are not requested"

    _enable_topology(context)
    sweep(context)
    assert check_topology(_read_topology(context), ["gpu-1", "gpu-2", "gpu-3"]) == []
    assert "SwitchName=leaf-2 Nodes=gpu-2" in _read_topology(context)
    assert slurm.commands == [["reconfigure"]]
    sweep(context)
    assert (len(aws.of("DescribeInstanceTopology")), slurm.commands) == (1, [["reconfigure"]])

    context.launcher.terminate([up["gpu-2"]])
    sweep(context)
    assert "SwitchName=unplaced Nodes=gpu-[2-3]" in _read_topology(context)


def test_slurm_reconfigures_while_the_lock_is_free(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    """Holding the lock would be a deadlock: slurmctld waits for its programs, and they wait for the lock."""
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = "IDLE+CLOUD"
    _enable_topology(context)
    slurm.when_reconfigured = lambda: _raise_if_locked(context)
    sweep(context)
    assert slurm.commands == [["reconfigure"]]


def test_a_failed_reconfigure_is_retried(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = "IDLE+CLOUD"
    _enable_topology(context)
    slurm.when_reconfigured = _raise_busy
    with pytest.raises(RuntimeError, match="busy"):
        sweep(context)
    slurm.when_reconfigured = None
    sweep(context)
    sweep(context)
    assert slurm.commands == [["reconfigure"], ["reconfigure"]]


def test_a_reconfigure_waits_for_the_nodes_of_a_job(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    """It would end the program that waits for the nodes, and the job would start up to 30 s later."""
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"
    _enable_topology(context)
    sweep(context)
    clock.sleep(300)
    sweep(context)
    assert slurm.commands == []
    slurm.states["gpu-1"] = "ALLOCATED+CLOUD"
    sweep(context)
    sweep(context)
    assert slurm.commands == [["reconfigure"]]


def test_a_reconfigure_waits_for_ten_minutes_at_most() -> None:
    starting = {"gpu-1": NodeState("ALLOCATED", frozenset({"CLOUD", "POWERING_UP"}))}
    idle = {"gpu-1": NodeState("IDLE", frozenset({"CLOUD", "POWERING_UP"}))}
    assert not is_reconfigure_due({}, idle, 1000.0)
    assert is_reconfigure_due({"topology.conf": 1000.0}, idle, 1000.0)
    assert not is_reconfigure_due({"topology.conf": 1000.0}, starting, 1599.0)
    assert is_reconfigure_due({"topology.conf": 1000.0}, starting, 1600.0)


def test_later_changes_do_not_postpone_a_reconfigure(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    _enable_topology(context)
    for node in ("gpu-1", "gpu-2"):
        resume(context, [node], [])
        slurm.states[node] = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"
        before = _read_topology(context)
        sweep(context)
        assert _read_topology(context) != before
        assert slurm.commands == []
        clock.sleep(301)
    sweep(context)
    assert slurm.commands == [["reconfigure"]]


def test_blocks_stay_as_they_are(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    """A block is a whole node group: where EC2 places its machines does not change it."""
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = "IDLE+CLOUD"
    _enable_topology(context)
    blocks = render_blocks([ULTRASERVER])
    (context.etc / "topology.conf").write_text(blocks)
    sweep(context)
    assert _read_topology(context) == blocks
    assert slurm.commands == []


def test_switches_replace_the_blocks_of_a_cluster_that_has_no_ultraserver_any_more() -> None:
    assert fit_topology(render_blocks([ULTRASERVER]), NODES) == render_topology(NODES, {})


def test_unreadable_places_do_not_stop_the_sweep(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    """If EC2 rejects the request for places, a reconfigure that is due still takes place."""
    resume(context, ["gpu-1"], [])
    slurm.states["gpu-1"] = "IDLE+CLOUD"
    _enable_topology(context)
    slurm.when_reconfigured = _raise_busy
    with pytest.raises(RuntimeError, match="busy"):
        sweep(context)
    slurm.when_reconfigured = None
    resume(context, ["gpu-2"], [])
    slurm.states["gpu-2"] = "IDLE+CLOUD"
    before = _read_topology(context)
    aws.fail("DescribeInstanceTopology", "UnauthorizedOperation")
    assert sweep(context) == []
    assert _read_topology(context) == before
    assert slurm.commands[-1] == ["reconfigure"]


def _raise_busy() -> None:
    raise RuntimeError("busy")


def _raise_if_locked(context: Context) -> None:
    with (context.memory.folder / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _enable_topology(context: Context) -> None:
    context.etc.mkdir()
    (context.etc / "topology.conf").write_text(render_topology(NODES, {}))


def _read_topology(context: Context) -> str:
    return (context.etc / "topology.conf").read_text()
