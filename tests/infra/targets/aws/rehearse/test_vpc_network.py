"""The network of a rehearsal: a range that is free, even if another rehearsal begins at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from typing import Any
from uuid import uuid4

import docker
import pytest

from cluster import names
from infra.engine.stop import Stop
from infra.targets.aws.rehearse import vpc_network
from infra.targets.aws.rehearse.vpc_network import choose_range, claim_network


def test_a_range_that_docker_uses_is_avoided() -> None:
    assert choose_range([]) == "10.96.0.0/20"
    assert choose_range([IPv4Network("10.96.3.0/24"), IPv4Network("172.17.0.0/16")]) == "10.96.16.0/20"


def test_a_machine_without_a_free_range_is_an_error_with_a_fix() -> None:
    with pytest.raises(Stop, match=r"no /20 of 10\.96\.0\.0/12 is free"):
        choose_range([IPv4Network("10.0.0.0/8")])


@pytest.mark.e2e
@pytest.mark.nightly
def test_two_rehearsals_that_find_the_same_range_free_get_two(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [f"rehearsal-range-{uuid4().hex[:6]}" for _ in range(2)]
    have_listed = threading.Barrier(len(clusters))
    have_claimed = threading.Barrier(len(clusters))
    listed: list[str] = []
    list_ranges = vpc_network.list_used_ranges

    def list_at_once(api: Any) -> dict[str, IPv4Network]:
        used = list_ranges(api)
        if len(listed) < len(clusters):
            listed.append(choose_range(list(used.values())))
            have_listed.wait(30)
        return used

    monkeypatch.setattr(vpc_network, "list_used_ranges", list_at_once)

    def claim(cluster: str) -> str:
        with claim_network(cluster, names.labels(cluster, "range", "")) as cidr:
            have_claimed.wait(30)
            return cidr

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(claim, clusters)
    assert listed[0] == listed[1]
    assert not IPv4Network(first).overlaps(IPv4Network(second))
    left = {network["Name"] for network in docker.APIClient().networks()}
    assert not left & {names.network(cluster) for cluster in clusters}
