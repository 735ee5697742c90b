"""What the pre-flight says about the switches above hosts, and the script that asks the tools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.preflight.across import build_probe
from infra.targets.hosts.preflight.facts import MachineFacts, Probe, parse_facts, render_script
from infra.targets.hosts.preflight.topology import judge_topology
from infra.targets.hosts.switches import place_nodes
from slurm.rdma.sysfs import Gid, RdmaFacts, RdmaPort
from tests.infra.targets.hosts.specs import CALM, FINGERPRINT, changed, load, section_of
from tests.slurm.ib_subnets import describe_switch, render_lldp, render_subnet, sysfs_guid
from tests.slurm.rdma_trees import NDR, add_device

HOSTS = ("rack1-1", "rack1-2", "rack2-1", "rack2-2")
UP = RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", 400.0, "InfiniBand")
SWITCHES = {"S-a1": "MF0;leaf-1:MQM9700/U1", "S-a2": "MF0;leaf-2:MQM9700/U1", "S-b1": "Quantum Mellanox Technologies"}
UPLINKS = [("S-a1", 33, "S-b1", 1), ("S-a2", 33, "S-b1", 2)]
Rows = list[tuple[str, str, str]]


def describe(fabric: str = "infiniband", **switches: Any) -> dict[str, Any]:
    """Return a spec with four hosts in two racks."""
    spec = changed("groups", "gpu", value={"count": 4, "fabric": fabric})
    machine = {"fingerprint": FINGERPRINT}
    spec["hosts"]["machines"] = {
        name: {"address": f"10.0.0.{last}", **machine} for last, name in enumerate(("head", *HOSTS), 10)
    }
    spec["hosts"]["groups"]["gpu"]["match"] = ["rack*"]
    spec["hosts"]["switches"] = switches
    return spec


def cable(leaves: Mapping[str, str], *, seen: Sequence[str] = HOSTS) -> str:
    """Return the output of ibnetdiscover in which hosts are under these switches."""
    adapters = {f"H-{HOSTS.index(host) + 1}": f"{host} mlx5_0" for host in seen}
    links = [(leaves[host], n, f"H-{HOSTS.index(host) + 1}", 1) for n, host in enumerate(seen, 1)]
    return render_subnet(SWITCHES | adapters, [*links, *UPLINKS])


def read(*subnets: str, **more: Any) -> dict[str, MachineFacts]:
    """Return the facts of hosts, of which the first have asked ibnetdiscover."""
    answers = (*subnets, *[""] * len(HOSTS))
    hosts = {
        host: replace(
            CALM,
            rdma=RdmaFacts((replace(UP, node_guid=sysfs_guid(f"H-{number}")),)),
            subnet=answers[number - 1],
            **more,
        )
        for number, host in enumerate(HOSTS, 1)
    }
    return {"head": CALM, **hosts}


def judge(data: dict[str, Any], facts: Mapping[str, MachineFacts]) -> Rows:
    spec = load(data)
    section = section_of(spec)
    problems = list(judge_topology(spec, section, assign_hosts(section), facts))
    assert {problem.level for _host, problem in problems} <= {"warning"}
    return [(host, problem.message, problem.fix) for host, problem in problems]


RACKS = {"rack1-1": "S-a1", "rack1-2": "S-a1", "rack2-1": "S-a2", "rack2-2": "S-a2"}
MIXED = RACKS | {"rack1-2": "S-a2", "rack2-1": "S-a1"}
WRITTEN = {"leaf-1": {"match": ["rack1-*"]}, "leaf-2": {"match": ["rack2-*"]}}


def test_the_lines_to_write_are_printed_and_agree_with_what_was_seen() -> None:
    rows = judge(describe(), read(cable(RACKS)))
    assert [host for host, _message, _fix in rows] == list(HOSTS)
    assert len({row[1:] for row in rows}) == 1
    assert rows[0][1:] == (
        "the hosts are under 2 leaf switches, which Slurm does not know: jobs may cross them",
        'write under `hosts:`: switches: {leaf-1: {match: ["rack1-*"]}, leaf-2: {match: ["rack2-*"]}}',
    )
    written = yaml.safe_load(rows[0][2].partition(": ")[2])["switches"]
    assert written == WRITTEN
    assert judge(describe(**written), read(cable(RACKS))) == []
    assert place_nodes(section_of(load(describe(**written))))["gpu-3"] == ("leaf-2",)
    # The other racks' names share a beginning with these, so that each host is named.
    crossed = judge(describe(), read(cable(MIXED)))[0][2]
    assert crossed.endswith("switches: {leaf-1: {match: [rack1-1, rack2-1]}, leaf-2: {match: [rack1-2, rack2-2]}}")


def test_one_switch_needs_no_lines() -> None:
    assert judge(describe(), read(cable(dict.fromkeys(HOSTS, "S-a1")))) == []
    assert judge(describe("tcp"), read(cable(RACKS))) == []


def test_switches_that_are_written_otherwise_are_named() -> None:
    rows = judge(describe(**WRITTEN), read(cable(RACKS | {"rack1-2": "S-a2"})))
    assert [row[:2] for row in rows] == [
        ("rack1-2", "is not under switch 'leaf-1' (hosts.switches): its ports lead elsewhere than those of its hosts")
    ]
    assert rows[0][2].startswith("write under `hosts:`: switches: {leaf-1: {match: [rack1-1]}, leaf-2: ")
    rows = judge(describe(**WRITTEN), read(cable(dict.fromkeys(HOSTS, "S-a1"))))
    assert [row[:2] for row in rows] == [
        ("rack2-1", "switches 'leaf-1' and 'leaf-2' (hosts.switches) are the same switch"),
        ("rack2-2", "switches 'leaf-1' and 'leaf-2' (hosts.switches) are the same switch"),
    ]


def test_a_host_that_the_spec_leaves_out_is_named() -> None:
    rows = judge(describe(**{"leaf-1": WRITTEN["leaf-1"]}), read(cable(RACKS)))
    assert [row[:2] for row in rows] == [
        (host, "is under no switch of `hosts.switches`, but its ports lead to one") for host in HOSTS[2:]
    ]


def test_groups_share_leaf_switches() -> None:
    spec = describe()
    spec["groups"] = {name: {"count": 2, "fabric": "infiniband"} for name in ("left", "right")}
    spec["hosts"]["groups"] = {"left": {"match": ["*-1"]}, "right": {"match": ["*-2"]}}
    views = read(cable(RACKS), cable(RACKS))
    rows = judge(spec, views)
    assert {row[2] for row in rows} == {
        'write under `hosts:`: switches: {leaf-1: {match: ["rack1-*"]}, leaf-2: {match: ["rack2-*"]}}'
    }
    # Groups in subnets of their own do not see each other, which is no contradiction.
    apart = {"rack1-1": cable(RACKS, seen=["rack1-1", "rack2-1"]), "rack1-2": cable(RACKS, seen=["rack1-2", "rack2-2"])}
    split = {host: replace(facts, subnet=apart.get(host, "")) for host, facts in views.items()}
    assert judge(spec, split) == rows


def test_a_host_that_the_subnet_does_not_have_is_named() -> None:
    rows = judge(describe(**WRITTEN), read(cable(RACKS, seen=HOSTS[:3])))
    assert rows == [
        (
            "rack2-2",
            "no switch is known for its RDMA ports, although those of other hosts are",
            "check its cables; for RoCE, that the switch sends LLDP and no firmware of the card takes it",
        )
    ]


def test_two_hosts_that_see_other_switches_are_named() -> None:
    views = (cable(RACKS), cable(RACKS | {"rack2-2": "S-a1"}))
    rows = judge(describe(**WRITTEN), read(*views))
    assert rows[0] == (
        "rack2-2",
        "'rack1-1' sees it under leaf-2, 'rack1-2' under leaf-1; allowed: the same",
        "if it is again so, the hosts are in separate subnets: check cables, partitions and subnet manager",
    )
    assert judge(describe(**WRITTEN), read(cable(RACKS), cable(RACKS))) == []


def test_tools_that_are_missing_are_named_unless_the_lines_are_written() -> None:
    facts = read(neighbors_error="ibnetdiscover is not installed")
    rows = judge(describe(), facts)
    assert rows[0] == (
        "rack1-1",
        "ibnetdiscover is not installed, so nothing keeps jobs under one leaf switch",
        "`up` installs infiniband-diags, and then `muster check` prints the lines; or write `hosts.switches`",
    )
    assert judge(describe(**WRITTEN), facts) == []


def test_roce_is_read_from_each_host() -> None:
    port = replace(UP, link_layer="Ethernet", gids=(Gid(3, "::ffff:10.0.0.1", "RoCE v2", "eth2"),))
    switches = {"rack1-1": "0a", "rack1-2": "0a", "rack2-1": "0b", "rack2-2": "0b"}
    facts = {
        host: replace(
            CALM,
            rdma=RdmaFacts((port,)),
            lldp=render_lldp(
                [("eth0", describe_switch("ff", "office")), ("eth2", describe_switch(mac, f"tor-{mac}.example.com"))]
            ),
        )
        for host, mac in switches.items()
    }
    suggested = 'switches: {tor-0a: {match: ["rack1-*"]}, tor-0b: {match: ["rack2-*"]}}'
    assert {row[2] for row in judge(describe("roce"), facts)} == {f"write under `hosts:`: {suggested}"}
    broken = facts | {"rack2-2": replace(facts["rack2-2"], lldp="[")}
    rows = judge(describe("roce"), broken)
    assert rows[0][0] == "rack2-2"
    assert rows[0][1].startswith("unexpected output of lldpctl")
    assert rows[0][2] == "install the package lldpd and start its service on all hosts; or write `hosts.switches`"


def test_two_hosts_are_asked_about_a_subnet_and_all_about_their_own_cables() -> None:
    def tools(data: dict[str, Any]) -> list[str]:
        spec = load(data)
        section = section_of(spec)
        return [build_probe(spec, section, assign_hosts(section), host).neighbors for host in ("head", *HOSTS)]

    assert tools(describe()) == ["", "subnet", "subnet", "", ""]
    assert tools(describe("roce")) == ["", "lldp", "lldp", "lldp", "lldp"]
    assert set(tools(describe("tcp"))) == {""}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Create a machine with three adapters, two of them in one subnet, and stand-ins for the tools."""
    for number in (1, 2, 3):
        add_device(tmp_path / "sys", f"mlx5_{number}", [f"0000:{number}5:01.0"], {1: NDR})
        device = tmp_path / "sys/class/infiniband" / f"mlx5_{number}"
        (device / "node_guid").write_text(f"{sysfs_guid(f'H-{number}')}\n")
    (tmp_path / "one").write_text(
        render_subnet({"S-a1": "x", "H-1": "a", "H-2": "b"}, [("S-a1", 1, "H-1", 1), ("S-a1", 2, "H-2", 1)])
    )
    (tmp_path / "two").write_text(render_subnet({"S-a2": 'a "y" \\', "H-3": "c"}, [("S-a2", 1, "H-3", 1)]))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "bin/ibnetdiscover").write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n'
        f'case "$2" in mlx5_3) cat {tmp_path}/two ;; *) cat {tmp_path}/one ;; esac\n'
    )
    (tmp_path / "bin/lldpctl").write_text('#!/bin/sh\necho "$*"\necho "cannot connect" >&2\nexit 1\n')
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    return tmp_path


def run_script(folder: Path, probe: Probe, path: str = "") -> MachineFacts:
    environment = os.environ | {"SYSFS": str(folder / "sys"), "PATH": path or f"{folder}/bin:{os.environ['PATH']}"}
    command = ["sh", "-c", render_script(probe)]
    return parse_facts(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def test_the_script_asks_once_for_each_subnet(tools: Path) -> None:
    facts = run_script(tools, Probe(neighbors="subnet"))
    assert (tools / "calls").read_text().splitlines() == ["-C mlx5_1 -P 1", "-C mlx5_3 -P 1"]
    assert facts.subnet.split("\n") == [
        line for name in ("one", "two") for line in (tools / name).read_text().rstrip("\n").split("\n")
    ]
    assert facts.neighbors_error == ""
    assert [port.node_guid for port in facts.rdma.ports] == [sysfs_guid(f"H-{number}") for number in (1, 2, 3)]


def test_the_script_says_why_a_tool_did_not_answer(tools: Path) -> None:
    assert run_script(tools, Probe(neighbors="lldp")).neighbors_error == "lldpctl: cannot connect"
    (tools / "bin/lldpctl").unlink()
    assert run_script(tools, Probe(neighbors="lldp")).neighbors_error == "lldpctl is not installed"
    nothing = run_script(tools, Probe())
    assert (nothing.subnet, nothing.lldp, nothing.neighbors_error) == ("", "", "")
