"""RDMA devices as sysfs shows them, the ports that jobs use, and the environment of NCCL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm.rdma.ports import RdmaError, build_environment, find_roce_gid, select_ports
from slurm.rdma.sysfs import Gid, RdmaFacts, RdmaPort
from tests.slurm.rdma_trees import (
    DGX_PAIRS,
    GIDS,
    HDR,
    ROCE,
    ROCE_UNUSED,
    SOFT_ROCE,
    UNCABLED,
    add_device,
    make_dgx_h100,
    read_tree,
)


def test_the_ports_of_a_dgx_are_read_with_their_place_on_the_bus(tmp_path: Path) -> None:
    facts = read_tree(make_dgx_h100(tmp_path))
    # In natural order: mlx5_10 comes after mlx5_9.
    assert [port.name for port in facts.ports] == [f"mlx5_{number}:1" for number in range(12)]
    assert facts.ports[0] == RdmaPort(
        "mlx5_0",
        1,
        state="ACTIVE",
        phys_state="LinkUp",
        gbps=400.0,
        link_layer="InfiniBand",
        counters={"symbol_error": 0, "link_downed": 0, "port_xmit_discards": 0},
        pci_path=("0000:15:01.0", "0000:15:02.0", "0000:18:00.0"),
    )
    assert (facts.ports[2].state, facts.ports[2].phys_state) == ("DOWN", "Polling")
    assert len(facts.gpus) == 8
    assert facts.gpus[0] == ("0000:15:01.0", "0000:15:02.0", "0000:1b:00.0")


def test_gids_that_are_not_in_use_are_left_out(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_bond_0", ["0000:16:00.0"], {1: ROCE | GIDS})
    (port,) = read_tree(tmp_path).ports
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3]
    assert port.gids[3] == Gid(3, "0000:0000:0000:0000:0000:ffff:c800:d106", "RoCE v2", "eth2")
    (without,) = read_tree(tmp_path, gids=False).ports
    assert without == replace(port, gids=())


def test_a_device_in_software_has_no_place_on_the_bus_and_other_counters(tmp_path: Path) -> None:
    add_device(tmp_path, "rxe0", [], {1: SOFT_ROCE})
    (port,) = read_tree(tmp_path).ports
    assert (port.gbps, port.pci_path, port.counters) == (2.5, (), {"link_downed": 1})


@pytest.mark.parametrize(
    ("rate", "layer", "gbps"),
    [
        ("400 Gb/sec (4X NDR)", "InfiniBand", 400.0),
        ("56 Gb/sec (4X FDR)", "InfiniBand", 56.0),
        ("40 Gb/sec (4X QDR)", "InfiniBand", 32.0),
        ("20 Gb/sec (4X DDR)", "InfiniBand", 16.0),
        ("10 Gb/sec (4X SDR)", "InfiniBand", 8.0),
        ("40 Gb/sec (4X QDR)", "Ethernet", 40.0),
        ("unknown", "InfiniBand", 0.0),
    ],
)
def test_the_rate_is_that_of_data(tmp_path: Path, rate: str, layer: str, gbps: float) -> None:
    add_device(tmp_path, "mlx4_0", ["0000:01:00.0"], {1: HDR | {"rate": rate, "link_layer": layer}})
    assert [port.gbps for port in read_tree(tmp_path).ports] == [gbps]


def test_a_machine_without_rdma_devices_has_no_ports(tmp_path: Path) -> None:
    assert read_tree(tmp_path) == RdmaFacts()


def test_jobs_use_the_ports_next_to_gpus_and_not_those_of_the_storage(tmp_path: Path) -> None:
    ports = select_ports(read_tree(make_dgx_h100(tmp_path)), "infiniband")
    assert [port.device for port in ports] == list(DGX_PAIRS)
    assert build_environment(ports, "infiniband") == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1",
    }


def test_without_gpus_on_the_same_bus_the_fastest_active_ports_are_used(tmp_path: Path) -> None:
    edr = HDR | {"rate": "100 Gb/sec (4X EDR)"}
    for bus, (device, files) in enumerate({"mlx5_0": HDR, "mlx5_1": HDR, "mlx5_2": edr, "mlx5_3": UNCABLED}.items()):
        add_device(tmp_path, device, [f"0000:0{bus}:00.0"], {1: files})
    assert [port.name for port in select_ports(read_tree(tmp_path), "infiniband")] == ["mlx5_0:1", "mlx5_1:1"]


def test_ports_of_the_other_link_layer_are_not_used(tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0", ["0000:01:00.0"], {1: HDR})
    add_device(tmp_path, "rocep1s0f0", ["0000:02:00.0"], {1: ROCE | GIDS})
    add_device(tmp_path, "rocep1s0f1", ["0000:03:00.0"], {1: ROCE_UNUSED})
    facts = read_tree(tmp_path)
    assert [port.device for port in select_ports(facts, "infiniband")] == ["mlx5_0"]
    roce = select_ports(facts, "roce")
    assert build_environment(roce, "roce") == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=rocep1s0f0:1",
        "NCCL_IB_GID_INDEX": "3",
    }


LINK_LOCAL = Gid(1, "fe80:0000:0000:0000:0ac0:ebff:feda:1cfb", "RoCE v2", "eth2")
V1 = Gid(2, "0000:0000:0000:0000:0000:ffff:c800:d106", "IB/RoCE v1", "eth2")
IPV6 = Gid(3, "fc00:0200:0000:0000:0000:0000:0000:000a", "RoCE v2", "eth2")
IPV4 = Gid(5, "0000:0000:0000:0000:0000:ffff:c800:d106", "RoCE v2", "eth2")


@pytest.mark.parametrize(
    ("gids", "index"), [((LINK_LOCAL, V1, IPV6, IPV4), 5), ((LINK_LOCAL, V1, IPV6), 3), ((IPV4,), 5)]
)
def test_the_gid_is_of_version_2_and_ipv4_where_possible(gids: tuple[Gid, ...], index: int) -> None:
    assert find_roce_gid(RdmaPort("mlx5_0", 1, gids=gids)).index == index


def test_ports_with_different_indices_leave_the_choice_to_nccl() -> None:
    ports = [RdmaPort("mlx5_0", 1, gids=(IPV4,)), RdmaPort("mlx5_1", 1, gids=(replace(IPV4, index=3),))]
    environment = build_environment(ports, "roce")
    assert environment["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert "NCCL_IB_GID_INDEX" not in environment


def fail(facts: RdmaFacts, fabric: str) -> tuple[str, str]:
    with pytest.raises(RdmaError) as raised:
        build_environment(select_ports(facts, fabric), fabric)
    return str(raised.value), raised.value.fix


def test_a_node_without_a_usable_port_is_refused_instead_of_using_tcp() -> None:
    down = RdmaPort("mlx5_0", 1, "DOWN", "Polling", link_layer="InfiniBand")
    waiting = RdmaPort("mlx5_1", 1, "INIT", "LinkUp", link_layer="InfiniBand")
    ethernet = RdmaPort("mlx5_2", 1, "ACTIVE", "LinkUp", 100.0, "Ethernet", gids=(LINK_LOCAL, V1))
    assert fail(RdmaFacts((ethernet,)), "infiniband") == (
        "has no RDMA device with link layer InfiniBand",
        "load the driver (`modprobe mlx5_ib`) until `ls /sys/class/infiniband` lists it, or write `fabric: tcp`",
    )
    assert fail(RdmaFacts((down,)), "infiniband") == (
        "has no active RDMA port with link layer InfiniBand: mlx5_0:1 is DOWN (Polling)",
        "check cables and switch ports, bring the interfaces up, or write `fabric: tcp`",
    )
    assert fail(RdmaFacts((down, waiting)), "infiniband") == (
        "has no active RDMA port with link layer InfiniBand: mlx5_0:1 is DOWN (Polling), "
        "mlx5_1:1 is INIT (no subnet manager has configured it)",
        "start a subnet manager (opensm, or that of a switch), or write `fabric: tcp`",
    )
    assert fail(RdmaFacts((ethernet,)), "roce") == (
        "port mlx5_2:1 has no GID of type 'RoCE v2' with an IP address",
        "give eth2 an IPv4 address: each address becomes a GID",
    )


def test_ports_with_addresses_of_different_families_are_refused() -> None:
    ports = tuple(
        RdmaPort(f"mlx5_{number}", 1, "ACTIVE", "LinkUp", 100.0, "Ethernet", gids=(gid,))
        for number, gid in enumerate((IPV4, IPV6))
    )
    message, fix = fail(RdmaFacts(ports), "roce")
    assert message.startswith("some ports have only IPv6 addresses: mlx5_0:1 ")
    assert fix == "give the interfaces of all ports an IPv4 address"
