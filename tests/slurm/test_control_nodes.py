"""Parsing `scontrol show node`, and the rules about node states that bootstrap, gate and power share."""

from __future__ import annotations

from datetime import datetime

import pytest

from slurm.control.condensed import show_free_nodes
from slurm.control.nodes import NodeState, parse_nodes, parse_queried_nodes, show_nodes

SIZE = "CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.75 RealMemory=1920 AllocMem=0 FreeMem=15238"


def node(state: str) -> NodeState:
    return parse_nodes(f"NodeName=gpu-1 Arch=x86_64 {SIZE} ThreadsPerCore=1 {state}\n")["gpu-1"]


def test_the_names_in_a_query_of_nodes_are_parsed():
    names = ("gpu-1", "gpu-2", "login")
    assert parse_queried_nodes(f"set -e\n{show_nodes(names)}; date") == names
    assert sorted(parse_queried_nodes(show_free_nodes(names, 8, 64_000))) == sorted(names)
    assert parse_queried_nodes(show_free_nodes(["gpu-1"], 8, 64_000)) == ("gpu-1",)
    assert parse_queried_nodes(f"{show_nodes()} 2>&1 | sort") == ()
    assert parse_queried_nodes("date") == ()


def test_states_and_reasons_are_parsed():
    text = (
        "NodeName=a Arch=x State=IDLE+DRAIN+INVALID_REG Boards=1 Reason=gres/gpu count (0 < 2) [slurm@2026-11-15]\n"
        "NodeName=b State=DOWN* Boards=1 Reason=Not responding [slurm@2026-11-15T03:00:00]\n"
        "NodeName=c State=MIXED Boards=1 Comment=none\n"
        "NodeName=d State=IDLE+DRAIN Reason=bad fan, row=7 [bob@2026-11-15T03:00:00] Comment=x\n"
        "no node at all\n"
    )
    nodes = parse_nodes(text)
    assert list(nodes) == ["a", "b", "c", "d"]
    assert (str(nodes["a"]), nodes["a"].reason, nodes["a"].by) == (
        "idle+drain+invalid_reg", "gres/gpu count (0 < 2)", "slurm",
    )  # fmt: skip
    assert str(nodes["b"]) == "down+not_responding"
    assert (nodes["c"].usable, nodes["c"].reason) == (True, "")
    assert (nodes["d"].reason, nodes["d"].by) == ("bad fan, row=7", "bob")
    assert nodes["d"].since == datetime(2026, 11, 15, 3).timestamp()  # Slurm prints local times
    assert nodes["c"].since == 0.0


def test_a_time_of_another_form_is_not_known():
    assert node("State=IDLE+DRAIN Reason=bad fan [bob@3 hours ago]").since == 0.0
    assert node("State=IDLE+DRAIN Reason=bad fan [bob@Unknown]").since == 0.0


@pytest.mark.parametrize(
    ("state", "works", "takes"),
    [
        ("State=IDLE", True, True),
        ("State=MIXED CPUAlloc=1", True, True),
        ("State=MIXED CPUAlloc=2", True, False),
        ("State=MIXED AllocMem=1800", True, False),
        ("State=ALLOCATED CPUAlloc=2", True, False),
        ("State=IDLE+COMPLETING", True, True),
        ("State=IDLE+DRAIN", False, False),
        ("State=IDLE+NOT_RESPONDING", False, False),
        ("State=IDLE*", False, False),
        ("State=DOWN*+DRAIN", False, False),
        ("State=UNKNOWN", False, False),
        ("State=IDLE+INVALID_REG", False, False),
    ],
)
def test_which_nodes_work_and_can_take_a_job(state: str, works: bool, takes: bool):
    assert (node(state).works, node(state).can_take(512)) == (works, takes)


@pytest.mark.attack(11)
@pytest.mark.parametrize(
    ("state", "usable", "resumable", "left_out"),
    [
        ("State=IDLE", True, False, False),
        ("State=MIXED", True, False, False),
        ("State=UNKNOWN", False, False, False),
        ("State=IDLE+NOT_RESPONDING", False, False, False),
        ("State=DOWN* Reason=Not responding [slurm@2026-11-15T03:00:00]", False, True, False),
        ("State=IDLE+DRAIN+INVALID_REG Reason=gres/gpu count reported lower (0 < 2) [slurm@2026]", False, True, False),
        ("State=IDLE+DRAIN Reason=muster: leaving [root@2026-11-15T03:00:00]", False, True, False),
        ("State=IDLE+DRAIN Reason=Node unexpectedly rebooted [slurm@2026-11-15T03:00:00]", False, True, False),
        ("State=IDLE+DRAIN Reason=fan broken [root@2026-11-15T03:00:00]", True, False, True),
        ("State=IDLE+DRAIN Reason=fan broken, tell the muster team [root@2026-11-15T03]", True, False, True),
        ("State=IDLE+DRAIN Reason=check why it unexpectedly rebooted [bob@2026-11-15T03]", True, False, True),
        (
            "State=IDLE+DRAIN Reason=Low RealMemory (reported:1 < configured:2) [slurm@2026]",
            False,
            True,
            False,
        ),
        ("State=IDLE+DRAIN Reason=Low fan speed, do not use [bob@2026-11-15T03:00:00]", True, False, True),
        ("State=DOWN Reason=Not responding to pings, being repaired [root@2026-11-15T03]", True, False, True),
        ("State=IDLE+DRAIN Reason=gres/gpu:0 has a bent pin [bob@2026-11-15T03:00:00]", True, False, True),
        ("State=MIXED+DRAIN Reason=fan broken [bob@2026-11-15T03:00:00]", True, False, True),
        ("State=DOWN Reason=fan broken [bob@2026-11-15T03:00:00]", True, False, True),
        ("State=IDLE+FAIL Reason=fan broken [bob@2026-11-15T03:00:00]", True, False, True),
        ("State=IDLE+DRAIN Reason=Kill task failed [slurm@2026-11-15T03:00:00]", True, False, False),
        ("State=IDLE Reason=an old one [bob@2026-11-15T03:00:00]", True, False, False),
    ],
)
def test_a_node_that_a_person_drained_is_left_out_and_not_resumed(
    state: str, usable: bool, resumable: bool, left_out: bool
):
    parsed = node(state)
    assert (parsed.usable, parsed.resumable, parsed.left_out) == (usable, resumable, left_out)
