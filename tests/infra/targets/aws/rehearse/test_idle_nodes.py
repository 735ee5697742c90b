"""Nodes without a job: what a rehearsal requires once Slurm has released them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse import idle_nodes
from infra.targets.aws.rehearse.idle_nodes import find_cost, release_idle_nodes


def make_machine(name: str, state: str) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, id=f"i-{name}", is_ending=True, raw=SimpleNamespace(_state=SimpleNamespace(name=state))
    )


def test_a_machine_that_runs_and_a_volume_that_stays_cost_money() -> None:
    machines = [make_machine("gpu-1", "terminated"), make_machine("gpu-2", "running")]
    before = {"volume vol-1", "NAT gateway nat-1"}
    assert find_cost(machines[:1], before, [*before]) == ""
    assert find_cost(machines, before, [*before, "volume vol-2"]) == (
        "gpu-2 (i-gpu-2) is not terminated and volume vol-2 is still billed"
    )


def test_a_node_that_is_released_too_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_nodes, "choose_group", lambda *_: ("gpu", 1))
    rehearsal = MagicMock()
    rehearsal.cloud.moto_account.list_billed.return_value = []
    rehearsal.cloud.instances.require.return_value = make_machine("gpu-1", "terminated")
    with pytest.raises(Stop, match="a node was released after 0 s without a job, not after 60 s"):
        release_idle_nodes(rehearsal)
    rehearsal.rehearsed.change_section.assert_called_once_with("slurm", suspend_s=60)
