"""The fabric check: NCCL's log, the devices' counters, the bandwidth, and which node is to blame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.fabric.evidence import Network, list_idle_ports, parse_nccl_log, read_counters, subtract_counters
from slurm.fabric.pairs import Blame, PairSpeed, blame_nodes, plan_rounds
from slurm.fabric.verdict import Evidence, ExpectedFabric, Finding, compare

EFA_LOG = """\
gpu-1:4021:4021 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
gpu-1:4021:4055 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)
gpu-1:4021:4055 [0] NCCL INFO Using network Libfabric
"""
TCP_LOG = """\
gpu-2:77:77 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation
gpu-2:77:91 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.1.7<0>
gpu-2:77:91 [0] NCCL INFO Using network Socket
"""
IB_LOG = "gpu-3:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.3<0>\n"
GIB = 2**30


def test_efa_and_its_devices_are_parsed_from_the_log() -> None:
    assert parse_nccl_log(EFA_LOG) == Network("efa", 16)


def test_a_silent_fallback_to_tcp_is_detected_with_its_cause() -> None:
    network = parse_nccl_log(TCP_LOG)
    assert (network.name, network.devices) == ("socket", 0)
    assert "No plugin found" in network.complaints[0]


def test_infiniband_and_an_empty_log_are_parsed() -> None:
    assert parse_nccl_log(IB_LOG) == Network("infiniband", 2)
    assert parse_nccl_log("") == Network("")


def test_efa_and_infiniband_counters_are_read_by_port(tmp_path: Path) -> None:
    devices = tmp_path / "class/infiniband"
    efa, mlx = devices / "rdmap86s0/ports/1/hw_counters", devices / "mlx5_0/ports/2/counters"
    # Soft-RoCE counts packets, not bytes.
    soft = devices / "rxe0/ports/1/hw_counters"
    for folder in (efa, mlx, soft):
        folder.mkdir(parents=True)
    (efa / "tx_bytes").write_text("100\n")
    (efa / "rdma_write_bytes").write_text("23\n")
    (mlx / "port_xmit_data").write_text("5\n")
    (soft / "sent_pkts").write_text("7\n")
    before = read_counters(tmp_path)
    assert before == {"rdmap86s0:1": 123, "mlx5_0:2": 20}
    (efa / "tx_bytes").write_text("1100\n")
    sent = subtract_counters(before, read_counters(tmp_path))
    assert sent == {"rdmap86s0:1": 1000, "mlx5_0:2": 0}
    assert list_idle_ports(sent, min_bytes=1) == ["mlx5_0:2"]


P5EN = ExpectedFabric("efa", devices=16, busbw={GIB: 437.0, 128 * 2**20: 289.0})
GOOD = {"gpu-1": Network("efa", 16), "gpu-2": Network("efa", 16)}


@pytest.mark.parametrize(
    ("evidence", "expected", "messages"),
    [
        (Evidence(GOOD, {}, {GIB: 430.0}), P5EN, []),
        (Evidence({**GOOD, "gpu-2": parse_nccl_log(TCP_LOG)}, {}, {GIB: 8.0}), P5EN, [
            "gpu-2: NCCL used socket, not efa (gpu-2:77:77 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), "
            "using internal implementation)",
            "8.0 GB/s at 1024 MiB is 2% of the expected 437.0"]),
        (Evidence({**GOOD, "gpu-1": Network("efa", 1)}, {}, {GIB: 430.0}), P5EN, ["gpu-1: NCCL found 1 of 16 devices"]),
        (Evidence({**GOOD, "gpu-1": Network("efa", 8)}, {}, {}, {"gpu-1": 8}), P5EN, []),
        (Evidence(GOOD, {}, {}, {"gpu-1": 17}), P5EN, ["gpu-1: NCCL found 16 of 17 devices"]),
        (Evidence(GOOD, {"gpu-2": ["rdmap86s0:1"]}, {}), P5EN, ["gpu-2: rdmap86s0:1 sent nothing"]),
        (Evidence({}, {}, {}), P5EN, ["no node reports which network NCCL used; expected efa"]),
        (Evidence(GOOD, {}, {128 * 2**20: 200.0, GIB: 360.0}), P5EN,
         ["360.0 GB/s at 1024 MiB is 82% of the expected 437.0"]),
        (Evidence({}, {}, {GIB: 1.0}), ExpectedFabric("tcp"), []),
    ],
)  # fmt: skip
def test_verdict(evidence: Evidence, expected: ExpectedFabric, messages: list[str]) -> None:
    assert [str(finding) for finding in compare(evidence, expected)] == messages


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 33])
def test_every_node_is_paired_and_is_in_each_round_at_most_once(count: int) -> None:
    nodes = [f"gpu-{number}" for number in range(1, count + 1)]
    planned = plan_rounds(nodes)
    assert all(nodes.index(first) < nodes.index(second) for part in planned for first, second in part)
    for part in planned:
        taken = [node for pair in part for node in pair]
        assert len(taken) == len(set(taken))
    pairs = [pair for part in planned for pair in part]
    pair_counts = {node: sum(node in pair for pair in pairs) for node in nodes}
    assert set(pair_counts.values()) == ({1} if count == 2 else {2})


EFA, TCP = ExpectedFabric("efa"), ExpectedFabric("tcp")


def ring(count: int, speed: Callable[[set[str]], float], size: int = GIB) -> list[PairSpeed]:
    nodes = [f"gpu-{number}" for number in range(1, count + 1)]
    return [PairSpeed(pair, {size: speed(set(pair))}) for part in plan_rounds(nodes) for pair in part]


@pytest.mark.parametrize(("bad", "count"), [("gpu-1", 5), ("gpu-4", 5), ("gpu-5", 5), ("gpu-2", 3), ("gpu-4", 4)])
def test_the_slow_node_is_named(bad: str, count: int) -> None:
    judged = blame_nodes([], ring(count, lambda pair: 200.0 if bad in pair else 440.0), EFA)
    assert judged == Blame({bad: "200.00 GB/s at best with its neighbours, others reach 440.00"})


def test_an_unreachable_node_is_named() -> None:
    pairs = [PairSpeed(pair.nodes, {} if "gpu-2" in pair.nodes else pair.busbw) for pair in ring(4, lambda _: 440.0)]
    judged = blame_nodes([Finding("", "the run across all nodes failed")], pairs, EFA)
    assert judged.reasons == {"gpu-2": "0.00 GB/s at best with its neighbours, others reach 440.00"}


def test_equal_speeds_pass_and_tcp_has_a_wider_tolerance() -> None:
    assert blame_nodes([], ring(3, lambda pair: 430.0 + 10 * ("gpu-1" in pair)), EFA) == Blame()
    uneven = ring(3, lambda pair: 0.6 if "gpu-1" in pair else 1.0)
    assert blame_nodes([], uneven, TCP) == Blame()
    assert list(blame_nodes([], uneven, EFA).reasons) == ["gpu-1"]


def test_a_finding_about_a_node_decides_between_two_nodes() -> None:
    finding = Finding("gpu-2", "NCCL found 1 of 16 devices")
    assert blame_nodes([finding], ring(2, lambda _: 430.0), P5EN) == Blame({"gpu-2": "NCCL found 1 of 16 devices"})


def test_a_single_slow_link_blames_no_node() -> None:
    judged = blame_nodes([], ring(4, lambda pair: 9.0 if pair == {"gpu-1", "gpu-4"} else 440.0), EFA)
    assert judged == Blame(unclear="gpu-1 and gpu-4 are slow with each other, not with others")


def test_a_slow_pair_alone_blames_no_node() -> None:
    judged = blame_nodes([], ring(2, lambda _: 100.0), P5EN)
    assert judged == Blame(unclear="gpu-1 or gpu-2 is slow: two nodes do not show which; measure them with a third")


def test_a_majority_of_slow_nodes_blames_no_node() -> None:
    judged = blame_nodes([], ring(4, lambda _: 100.0), P5EN)
    assert not judged.reasons
    assert judged.unclear.startswith(
        "4 of 4 nodes have problems (gpu-1, gpu-2, gpu-3, gpu-4), so no single node is at fault"
    )


def test_a_slow_run_with_equal_pairs_blames_no_node() -> None:
    whole = Finding("", "300.0 GB/s at 1024 MiB is 69% of the expected 437.0")
    assert blame_nodes([whole], ring(4, lambda _: 430.0), P5EN) == Blame(unclear=str(whole))


def test_speed_is_compared_at_the_largest_published_size() -> None:
    pair = PairSpeed(("a", "b"), {4096: 900.0, 128 * 2**20: 280.0})
    assert (pair.speed(P5EN), pair.expected(P5EN)) == (280.0, 289.0)
    assert (pair.speed(TCP), pair.expected(TCP)) == (900.0, None)
