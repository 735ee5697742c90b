"""The proof of single InfiniBand and RoCE links: output of perftest, the verdict on links, and errors during the run.

The tables are laid out as in linux-rdma/perftest#132; their rows are of other published runs, and values of 400 Gb/s
ports are composed.
"""

from __future__ import annotations

import pytest

from slurm.fabric.evidence import Network, parse_nccl_log
from slurm.fabric.links import Link, judge_errors, judge_links
from slurm.fabric.pairs import Blame, PairSpeed, blame_nodes, list_slow_pairs, plan_rounds
from slurm.fabric.perftest import BANDWIDTH, LATENCY, build_command, find_error, parse_result
from slurm.fabric.verdict import Evidence, ExpectedFabric, compare

BW_OUTPUT = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 4\t\tTransport type : IB
 Mtu             : 4096[B]
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x02 QPN 0x0032 PSN 0x5f2841 RKey 0x002440 VAddr 0x007f2e5f64b000
 remote address: LID 0x01 QPN 0x003a PSN 0xc0fd7e RKey 0x002442 VAddr 0x007f443b2f8000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      560845           0.00               98.02                0.186950
---------------------------------------------------------------------------------------
"""
LAT_OUTPUT = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 2       1000          1.76           6.12         1.79                1.80             0.06
"""
REFUSED = "Couldn't connect to gpu-1:18515\nUnable to open file descriptor for socket connection\n"
ROCE_LOG = "gpu-3:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.3<0>\n"


def test_bandwidth_and_latency_are_read_from_their_columns() -> None:
    assert parse_result(BANDWIDTH, BW_OUTPUT) == 98.02
    assert parse_result(LATENCY, LAT_OUTPUT) == 1.79


@pytest.mark.parametrize(
    "output", ["", REFUSED, BW_OUTPUT.replace("Gb/sec", "MB/sec"), BW_OUTPUT.partition("Conflicting")[0]]
)
def test_output_without_a_result_in_gigabits_has_none(output: str) -> None:
    assert parse_result(BANDWIDTH, output) is None


def test_the_last_line_tells_why_there_is_no_result() -> None:
    assert find_error(REFUSED) == "Unable to open file descriptor for socket connection"
    assert find_error("-----\n") == "no output"


def test_the_command_names_device_port_and_gid() -> None:
    server = build_command(BANDWIDTH, "mlx5_3:1", 3, 18521)
    assert server[:8] == ["ib_write_bw", "-F", "-d", "mlx5_3", "-i", "1", "-x", "3"]
    assert "--report_gbits" in server
    assert "-x" not in build_command(LATENCY, "mlx5_3:1", None, 18522)


def ring(count: int, slow: dict[str, float]) -> list[Link]:
    """Return the links of two ports on a ring of nodes; `slow` has the Gb/s of the port mlx5_1 of nodes."""
    nodes = [f"gpu-{number}" for number in range(1, count + 1)]
    pairs = [pair for part in plan_rounds(nodes) for pair in part]
    slowest = {pair: min((slow[node] for node in pair if node in slow), default=391.0) for pair in pairs}
    return [
        link
        for pair in pairs
        for link in (Link(pair, "mlx5_0:1", 400.0, 391.0, 2.0), Link(pair, "mlx5_1:1", 400.0, slowest[pair], 2.0))
    ]


def messages(links: list[Link]) -> list[str]:
    return [str(finding) for finding in judge_links(links)]


def test_links_at_their_rate_are_good() -> None:
    assert messages(ring(4, {})) == []
    assert messages(ring(2, {})) == []


def test_a_node_with_a_slow_port_is_named_with_the_port() -> None:
    links = ring(4, {"gpu-2": 197.0})
    assert messages(links) == ["gpu-2: mlx5_1:1 reaches 197.0 of 400 Gb/s with all its neighbours"]
    pairs = [PairSpeed(link.nodes, {2**30: 300.0}) for link in links if link.port == "mlx5_0:1"]
    blame = blame_nodes(judge_links(links), pairs, ExpectedFabric("infiniband"))
    assert blame == Blame({"gpu-2": "mlx5_1:1 reaches 197.0 of 400 Gb/s with all its neighbours"})


def test_two_nodes_do_not_show_which_port_is_slow() -> None:
    assert messages(ring(2, {"gpu-2": 197.0})) == ["gpu-1 and gpu-2: mlx5_1:1 reaches 197.0 of 400 Gb/s"]


def test_if_most_nodes_are_slow_none_is_blamed() -> None:
    assert messages(ring(3, {"gpu-1": 100.0, "gpu-2": 100.0})) == [
        f"{pair}: mlx5_1:1 reaches 100.0 of 400 Gb/s"
        for pair in ("gpu-1 and gpu-2", "gpu-2 and gpu-3", "gpu-1 and gpu-3")
    ]


def test_a_port_that_does_not_connect_is_reported_with_its_error() -> None:
    links = [Link(("gpu-1", "gpu-2"), "mlx5_0:1", 200.0, error="Couldn't connect to gpu-1:18515")]
    assert messages(links) == ["gpu-1 and gpu-2: no connection at mlx5_0:1 (Couldn't connect to gpu-1:18515)"]


def test_a_link_that_answers_late_is_reported() -> None:
    links = [
        Link(("gpu-1", "gpu-2"), f"mlx5_{number}:1", 200.0, 197.0, us) for number, us in enumerate((2.0, 2.1, 9.0))
    ]
    assert messages(links) == ["gpu-1 and gpu-2: mlx5_2:1 answers after 9.0 us, links usually after 2.1"]


def test_errors_that_grew_during_the_run_are_reported() -> None:
    before = {"mlx5_0:1": {"symbol_error": 5, "link_downed": 1}}
    after = {"mlx5_0:1": {"symbol_error": 14, "link_downed": 2}, "mlx5_1:1": {"port_rcv_errors": 3}}
    assert list(judge_errors(before, after)) == ["link_downed of port mlx5_0:1 grew by 1 during the run"]


def test_packets_that_are_discarded_during_the_run_are_reported() -> None:
    before, after = ({"mlx5_0:1": {"port_xmit_discards": count}} for count in (50, 5050))
    assert list(judge_errors(before, after)) == ["port_xmit_discards of port mlx5_0:1 grew by 5000 during the run"]


def test_roce_is_told_from_infiniband() -> None:
    assert parse_nccl_log(ROCE_LOG) == Network("roce", 2)


def test_without_gpus_pairs_are_judged_as_over_tcp() -> None:
    speeds = {("gpu-1", "gpu-2"): 1.2, ("gpu-2", "gpu-3"): 0.8, ("gpu-1", "gpu-3"): 1.2}
    pairs = [PairSpeed(nodes, {2**30: speed}) for nodes, speed in speeds.items()]
    assert list_slow_pairs(pairs, ExpectedFabric("infiniband", nccl=False)) == []
    assert [pair.nodes for pair in list_slow_pairs(pairs, ExpectedFabric("infiniband"))] == [("gpu-2", "gpu-3")]


def test_without_gpus_the_network_of_nccl_is_not_judged() -> None:
    ports = {"mlx5_0:1": 200.0}
    nothing = Evidence({}, {}, {})
    assert compare(nothing, ExpectedFabric("infiniband", 1, ports=ports, nccl=False)) == []
    assert [str(finding) for finding in compare(nothing, ExpectedFabric("infiniband", 1, ports=ports))] == [
        "no node reports which network NCCL used; expected infiniband"
    ]
