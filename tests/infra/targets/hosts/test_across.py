"""What the pre-flight says about hosts by each other, and how equal problems are reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.spec.issue import Issue
from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.preflight.across import build_probe, judge_across
from infra.targets.hosts.preflight.facts import MachineFacts, Mount, Peer, Probe
from infra.targets.hosts.preflight.judge import Problem
from infra.targets.hosts.preflight.report import describe_hosts, list_issues
from slurm.rdma.sysfs import RdmaFacts, RdmaPort
from tests.infra.targets.hosts.specs import CALM, VALID, changed, load, section_of

HEAD = Peer("head", "10.0.0.10", 6817)
NEIGHBOUR = Peer("rack1-2", "10.0.0.12", 48999)
LOCAL = Mount("/dev/sda1", "ext4", read_only=False)
OTHER = Mount("nas2:/export", "nfs4", read_only=False)


def judge(**facts: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the problems of the three hosts; `head`, `first` and `second` change their facts."""
    hosts = {"head": "head", "first": "rack1-1", "second": "rack1-2"}
    read = {host: replace(CALM, **({"machine": (host,)} | facts.get(key, {}))) for key, host in hosts.items()}
    section = section_of(load())
    problems = judge_across(section, assign_hosts(section), read)
    return [(host, problem.code, problem.message, problem.fix) for host, problem in problems]


def test_calm_hosts_have_no_problem() -> None:
    assert judge(first={"peers": {HEAD: "closed", NEIGHBOUR: "open"}, "resolved": {"controller": "10.0.0.10"}}) == []


@pytest.mark.fault(17)
def test_two_addresses_of_one_machine() -> None:
    assert judge(second={"machine": ("rack1-1",)}) == [
        (
            "rack1-2",
            "host_twice",
            "is the same machine as 'rack1-1': 10.0.0.12 and 10.0.0.11 are both its addresses",
            "remove one of the two",
        )
    ]


def test_another_system_than_the_controllers() -> None:
    assert judge(second={"os": "ubuntu 24.04"}) == [
        (
            "rack1-2",
            "host_os_mixed",
            "runs ubuntu 24.04 (x86_64), the controller debian 13 (x86_64); allowed: the same",
            "install the same system: the controller builds Slurm's packages for all hosts",
        )
    ]
    # It has an issue of its own.
    assert judge(second={"os": "rocky 9.4"}) == []


@pytest.mark.parametrize(("result", "words"), [("silent", "no answer"), ("unreachable", "no route, or rejected")])
def test_a_firewall_in_the_way_is_named(result: str, words: str) -> None:
    problems = judge(
        first={"peers": {HEAD: result, NEIGHBOUR: result}}, head={"active": frozenset({"firewalld"})},
        second={"filters": frozenset({"nftables"})},
    )  # fmt: skip
    assert problems == [
        (
            "rack1-1",
            "host_blocked",
            f"cannot reach 'head' (10.0.0.10) at port 6817: {words}",
            "allow all TCP ports between the hosts in the firewall of 'head' (firewalld is active there) "
            "and in the network",
        ),
        (
            "rack1-1",
            "host_blocked",
            f"cannot reach 'rack1-2' (10.0.0.12) at port 48999 (jobs use ports like this): {words}",
            "allow all TCP ports between the hosts in the firewall of 'rack1-2' (nftables is active there) "
            "and in the network",
        ),
    ]


@pytest.mark.fault(17)
def test_a_host_that_calls_itself_like_another_node() -> None:
    assert judge(first={"hostname": "gpu-1"}, head={"hostname": "gpu-2"}) == [
        (
            "head",
            "host_name_taken",
            "10.0.0.10 has the host name 'gpu-2', which is that of a node: host 'rack1-2' at 10.0.0.12",
            "change its host name, or rename the group: nodes are called controller, login and GROUP-1, GROUP-2",
        )
    ]


def test_a_host_that_did_not_answer_us_is_not_reported_by_its_peers() -> None:
    section = section_of(load())
    read = {"rack1-1": replace(CALM, peers={HEAD: "silent"})}
    assert list(judge_across(section, assign_hosts(section), read)) == []


def test_an_address_that_a_host_cannot_resolve() -> None:
    peer = Peer("head", "head.lan", 6817)
    assert judge(first={"peers": {peer: "unresolved"}}) == [
        (
            "rack1-1",
            "host_name",
            "cannot resolve 'head.lan', the address of 'head'",
            "add it to DNS, or write `cluster_address` with the IPv4 address of 'head'",
        )
    ]


def test_a_name_with_another_meaning_is_a_warning() -> None:
    assert judge(first={"resolved": {"controller": "192.0.2.7", "gpu-1": "127.0.1.1"}}) == [
        (
            "rack1-1",
            "host_name_taken",
            "the name 'controller' is 192.0.2.7 here; the cluster makes it 10.0.0.10 in /etc/hosts",
            "check that nothing there needs the old meaning",
        )
    ]


def test_only_the_server_of_a_filesystem_may_have_it_locally() -> None:
    assert judge(head={"mounts": {"/shared": LOCAL}}) == []
    problems = judge(head={"mounts": {"/shared": LOCAL}}, first={"mounts": {"/shared": LOCAL}})
    assert problems == [
        (
            host,
            "host_mount_local",
            "/shared is a local filesystem (ext4 on /dev/sda1), not a shared one",
            "mount the same network filesystem at /shared on every host; only its server may have it locally",
        )
        for host in ("head", "rack1-1")
    ]


def test_different_sources_are_a_warning() -> None:
    problems = judge(second={"mounts": {"/shared": OTHER}})
    assert [(host, code) for host, code, _, _ in problems] == [
        (host, "host_mounts_differ") for host in ("head", "rack1-1", "rack1-2")
    ]
    assert problems[2][2] == "/shared comes from nas2:/export; the hosts mount it from nas2:/export, nas:/export"


def test_the_probe_of_each_host() -> None:
    spec = load(changed("hosts", "machines", "rack1-2", "cluster_address", value="192.168.7.12"))
    section = section_of(spec)

    def probe(host: str) -> Probe:
        return build_probe(spec, section, assign_hosts(section), host)

    assert probe("head").peers == (Peer("rack1-1", "10.0.0.11", 6818), Peer("rack1-2", "192.168.7.12", 6818))
    assert probe("rack1-1").peers == (HEAD, Peer("rack1-2", "192.168.7.12", 48999))
    assert probe("rack1-2").peers == (HEAD, Peer("rack1-1", "10.0.0.11", 48999))
    assert probe("head").mounts == ("/shared",)
    assert probe("head").names == ("controller", "gpu-1", "gpu-2")
    assert probe("head").users == {"muster": 2000}


def test_a_single_compute_host_has_no_neighbour() -> None:
    hosts = VALID["hosts"] | {"machines": {name: VALID["hosts"]["machines"][name] for name in ("head", "rack1-1")}}
    spec = load(changed(hosts=hosts, groups={"gpu": {"count": 1}}))
    section = section_of(spec)
    assert build_probe(spec, section, assign_hosts(section), "rack1-1").peers == (HEAD,)


def test_equal_problems_are_one_issue() -> None:
    sudo = Problem("error", "host_sudo", "no sudo", "allow it")
    clock = Problem("warning", "host_clock", "late", "set it")
    names = [f"rack1-{number}" for number in range(1, 19)]
    issues = list_issues([("head", clock), *((name, sudo) for name in names)])
    listed = ", ".join(names[:16])
    assert issues == [
        Issue("warning", "host_clock", "hosts.machines.head", "late", "set it"),
        Issue("error", "host_sudo", f"hosts.machines: {listed} and 2 more", "no sudo", "allow it"),
    ]


def test_equal_hosts_are_one_line() -> None:
    ports = RdmaFacts((RdmaPort("mlx5_0", 1, "ACTIVE", gbps=400.0), RdmaPort("mlx5_1", 1, "DOWN", gbps=10.0)))
    gpu = replace(CALM, gpus=8, gpu_models=("NVIDIA H100",) * 8, rdma=ports, active=frozenset({"munge", "ufw"}))
    assert list(
        describe_hosts({"head": CALM, "a": gpu, "b": gpu, "c": replace(CALM, gpus=1), "d": MachineFacts()})
    ) == [
        "head: debian 13, 64 CPUs, 512 GiB",
        "a, b: debian 13, 64 CPUs, 512 GiB, 8 x NVIDIA H100, 1 of 2 RDMA ports active at 400 Gb/s, active: munge, ufw",
        "c: debian 13, 64 CPUs, 512 GiB, 1 x NVIDIA GPUs without a driver",
        "d: unknown system, 0 CPUs, 0 GiB",
    ]
