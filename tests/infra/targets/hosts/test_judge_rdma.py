"""What the pre-flight says about the InfiniBand and RoCE ports of hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.preflight.rdma import check_rdma, judge_ports
from slurm.rdma.sysfs import RdmaFacts, RdmaPort
from tests.infra.targets.hosts.specs import CALM, changed, load, section_of, subject
from tests.slurm.rdma_trees import make_dgx_h100, read_tree

INFINIBAND = changed("groups", "gpu", "fabric", value="infiniband")
ACTIVE = RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", 200.0, "InfiniBand")
OTHER = replace(ACTIVE, device="ibp3s0")
DOWN = replace(ACTIVE, state="DOWN", phys_state="Polling", gbps=10.0)


def judge_alone(*ports: RdmaPort, fabric: str = "infiniband") -> list[tuple[str, str, str, str]]:
    spec = changed("groups", "gpu", "fabric", value=fabric)
    problems = check_rdma(subject(data=spec, rdma=RdmaFacts(ports)))
    return [(problem.level, problem.code, problem.message, problem.fix) for problem in problems]


def judge_group(first: RdmaFacts, second: RdmaFacts) -> list[tuple[str, str, str, str]]:
    spec = load(INFINIBAND)
    facts = {"head": CALM, "rack1-1": replace(CALM, rdma=first), "rack1-2": replace(CALM, rdma=second)}
    problems = judge_ports(spec, assign_hosts(section_of(spec)), facts)
    return [(host, problem.level, problem.code, problem.message) for host, problem in problems]


def test_a_host_with_an_active_port_is_good() -> None:
    assert judge_alone(ACTIVE) == []
    assert list(check_rdma(subject("head", INFINIBAND))) == []


def test_a_host_without_ports_of_the_fabric_is_refused() -> None:
    assert judge_alone() == [
        (
            "error",
            "host_rdma",
            "has no RDMA device with link layer InfiniBand (groups.gpu.fabric is infiniband)",
            "load the driver (`modprobe mlx5_ib`) until `ls /sys/class/infiniband` lists it, or write `fabric: tcp`",
        )
    ]
    assert [problem[2] for problem in judge_alone(DOWN)] == [
        "has no active RDMA port with link layer InfiniBand: mlx5_0:1 is DOWN (Polling) "
        "(groups.gpu.fabric is infiniband)"
    ]
    assert [problem[2] for problem in judge_alone(replace(ACTIVE, link_layer="Ethernet"), fabric="roce")] == [
        "port mlx5_0:1 has no GID of type 'RoCE v2' with an IP address (groups.gpu.fabric is roce)"
    ]


def test_infiniband_that_no_job_would_use_is_a_warning() -> None:
    assert judge_alone(ACTIVE, OTHER, fabric="tcp") == [
        (
            "warning",
            "host_rdma_unused",
            "has 2 active InfiniBand ports at 200 Gb/s that jobs would not use: groups.gpu.fabric is tcp",
            "write `fabric: infiniband`",
        )
    ]
    assert judge_alone(DOWN, replace(ACTIVE, link_layer="Ethernet"), fabric="tcp") == []


def test_equal_hosts_have_no_problems(tmp_path: Path) -> None:
    dgx = read_tree(make_dgx_h100(tmp_path))
    assert judge_group(dgx, dgx) == []


def test_ports_that_are_down_missing_or_slow_on_one_host_are_named(tmp_path: Path) -> None:
    good = read_tree(make_dgx_h100(tmp_path / "good"))
    make_dgx_h100(tmp_path / "bad", mlx5_3={"state": "1: DOWN", "phys_state": "2: Polling"},
                  mlx5_9={"rate": "200 Gb/sec (2X NDR)"}, mlx5_1={"state": "1: DOWN"})  # fmt: skip
    (tmp_path / "bad/class/infiniband/mlx5_11").unlink()
    assert judge_group(read_tree(tmp_path / "bad"), good) == [
        (
            "rack1-1",
            "error",
            "host_rdma_port",
            "RDMA port mlx5_3:1 is DOWN (Polling); on 'rack1-2' it is active",
        ),
        ("rack1-1", "warning", "host_rdma_slow", "RDMA port mlx5_9:1 runs at 200 Gb/s, on 'rack1-2' at 400"),
        ("rack1-1", "error", "host_rdma_port", "has no RDMA port mlx5_11:1, which 'rack1-2' has"),
    ]


def test_a_slow_port_of_the_first_host_is_named_too() -> None:
    slow = RdmaFacts((replace(ACTIVE, gbps=100.0),))
    assert judge_group(slow, RdmaFacts((ACTIVE,))) == [
        ("rack1-1", "warning", "host_rdma_slow", "RDMA port mlx5_0:1 runs at 100 Gb/s, on 'rack1-2' at 200")
    ]


def test_a_rate_that_cannot_be_read_is_slower_than_any_other() -> None:
    unread = RdmaFacts((replace(ACTIVE, gbps=0.0),))
    assert judge_group(unread, unread) == []
    assert judge_group(unread, RdmaFacts((ACTIVE,))) == [
        ("rack1-1", "warning", "host_rdma_slow", "RDMA port mlx5_0:1 runs at 0 Gb/s, on 'rack1-2' at 200")
    ]


def test_machines_with_other_names_are_compared_by_number() -> None:
    assert judge_group(RdmaFacts((OTHER,)), RdmaFacts((ACTIVE,))) == []
    assert judge_group(RdmaFacts((OTHER,)), RdmaFacts((ACTIVE, replace(ACTIVE, device="mlx5_1")))) == [
        ("rack1-1", "error", "host_rdma_port", "has 1 usable RDMA port; 'rack1-2' has 2")
    ]


def test_a_host_that_is_refused_alone_is_not_compared() -> None:
    assert judge_group(RdmaFacts((DOWN,)), RdmaFacts((ACTIVE,))) == []
