"""Which ports of two nodes are measured with each other, and that one bad port does not stop the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.fabric import __main__ as command
from slurm.fabric.link_plan import NodePort, PlannedLink, plan_links
from slurm.fabric.measure import list_node_ports, measure_links, serve_links
from slurm.rdma.sysfs import Gid, RdmaFacts, RdmaPort

PAIR = ("gpu-1", "gpu-2")
GOOD = NodePort(400.0)
ROCE = RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", 200.0, "Ethernet")
WITH_GID = replace(ROCE, device="mlx5_1", gids=(Gid(3, "0000:0000:0000:0000:0000:ffff:c800:d106", "RoCE v2"),))
RATES = {"mlx5_0:1": 200.0, "mlx5_1:1": 200.0}
NO_GID = "port mlx5_0:1 has no GID of type 'RoCE v2' with an IP address"


def test_ports_are_matched_by_name_at_the_same_tcp_port() -> None:
    ports = {"mlx5_0:1": GOOD, "mlx5_1:1": GOOD}
    assert plan_links(PAIR, ports, dict(reversed(ports.items()))) == [
        PlannedLink(("mlx5_0:1", "mlx5_0:1"), 400.0, 18515),
        PlannedLink(("mlx5_1:1", "mlx5_1:1"), 400.0, 18517),
    ]


def test_a_port_that_only_one_node_uses_is_refused_and_the_others_still_match() -> None:
    some, more = {"mlx5_1:1": GOOD}, {"mlx5_0:1": GOOD, "mlx5_1:1": GOOD}
    for first, second, without in ((some, more, "gpu-1"), (more, some, "gpu-2")):
        planned = {link.name: link for link in plan_links(PAIR, first, second)}
        assert planned["mlx5_0:1"].error == f"{without} does not use this port"
        assert (planned["mlx5_1:1"].ports, planned["mlx5_1:1"].error) == (("mlx5_1:1", "mlx5_1:1"), "")


def test_machines_whose_ports_have_other_names_are_matched_in_order() -> None:
    planned = plan_links(PAIR, {"mlx5_0:1": GOOD, "mlx5_1:1": GOOD}, {"ibp3s0:1": GOOD, "ibp4s0:1": GOOD})
    assert [link.ports for link in planned] == [("mlx5_0:1", "ibp3s0:1"), ("mlx5_1:1", "ibp4s0:1")]


def test_the_higher_rate_counts_whichever_node_has_it() -> None:
    slow, fast = {"mlx5_0:1": NodePort(100.0)}, {"mlx5_0:1": GOOD}
    assert [plan_links(PAIR, *ports)[0].rate for ports in ((slow, fast), (fast, slow))] == [400.0, 400.0]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install stand-ins for perftest, and return the file to which they write their arguments."""
    for program in ("ib_write_bw", "ib_write_lat"):
        (tmp_path / program).write_text(f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/started\n')
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "started"


def test_a_port_without_a_gid_is_skipped_on_both_nodes_and_the_others_are_served(started: Path) -> None:
    facts = RdmaFacts((ROCE, WITH_GID))
    first, second = list_node_ports(RATES, facts), dict.fromkeys(RATES, GOOD)
    assert first == {"mlx5_0:1": NodePort(200.0, NO_GID), "mlx5_1:1": NodePort(200.0)}
    planned = plan_links(PAIR, first, second)
    serve_links(planned, facts, is_done=lambda: False)
    lines = started.read_text().splitlines()
    assert len(lines) == 2
    assert all("-d mlx5_1 -i 1 -x 3 " in line for line in lines)
    links = {link.port: link for link in measure_links(PAIR, planned, facts)}
    assert links["mlx5_0:1"].error == f"gpu-1: {NO_GID}"
    assert links["mlx5_1:1"].error == "no output"


def test_a_node_without_perftest_names_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    planned = plan_links(PAIR, list_node_ports(RATES, RdmaFacts()), dict.fromkeys(RATES, GOOD))
    serve_links(planned, RdmaFacts(), is_done=lambda: False)
    assert {link.error for link in measure_links(PAIR, planned, RdmaFacts())} == {"gpu-1: ib_write_bw is not installed"}


@pytest.mark.usefixtures("started")
def test_nodes_with_different_ports_plan_with_each_others_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tmp_path / "expected.json"
    monkeypatch.setattr(command, "EXPECTED", expected)
    monkeypatch.setenv("SYSFS", str(tmp_path))
    for node, ports in (("gpu-1", {"mlx5_1:1": 200.0}), ("gpu-2", RATES)):
        expected.write_text(json.dumps({"fabric": "infiniband", "gpus": 8, "rdma": ports}))
        monkeypatch.setenv("SLURMD_NODENAME", node)
        assert command.main(["count", str(tmp_path), "after"]) == 0
    assert command.main(["link", str(tmp_path), "gpu-1,gpu-2"]) == 0
    links = json.loads((tmp_path / "link.gpu-1,gpu-2.json").read_text())
    assert {link["port"]: link["error"] for link in links} == {
        "mlx5_1:1": "no output",
        "mlx5_0:1": "gpu-1 does not use this port",
    }
