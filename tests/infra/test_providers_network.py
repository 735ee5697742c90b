"""The address range of a network when another network is created at the same time."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest
from docker.errors import APIError

from infra.resources.error import ResourceError
from infra.resources.properties import Properties
from infra.targets.local.build import docker_network

FIRST, SECOND = "10.88.0.0/24", "10.88.1.0/24"
PROPS: Properties = {"cluster": "demo", "stack": "local", "nodes": [], "egress": False, "tags": {}}


class RacingEngine:
    """A Docker engine where another network takes the first free range right after the used ranges were listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: dict[str, IPv4Network] = {}
        monkeypatch.setattr(docker_network, "list_used_ranges", self.list_used_ranges)

    def list_used_ranges(self, _api: object) -> dict[str, IPv4Network]:
        listed = dict(self.taken)
        self.taken["the Docker network muster-other"] = IPv4Network(FIRST)
        return listed

    def create_network(self, _name: str, *, ipam: dict[str, Any], **_options: object) -> None:
        self.subnet = ipam["Config"][0]["Subnet"]
        if IPv4Network(self.subnet) in self.taken.values():
            raise APIError("refused", explanation="Pool overlaps with other one on this address space")

    def inspect_network(self, _name: str) -> dict[str, Any]:
        return {"IPAM": {"Config": [{"Subnet": self.subnet}]}}


def test_taken_range_is_replaced_by_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network = docker_network._create(RacingEngine(monkeypatch), "muster-demo", PROPS)
    assert network["IPAM"]["Config"][0]["Subnet"] == SECOND


def test_taken_range_of_the_spec_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ResourceError, match=r"network.cidr: 10.88.0.0/24 is in use: it overlaps the Docker network muster-o"
    ):
        docker_network._create(RacingEngine(monkeypatch), "muster-demo", PROPS | {"cidr": FIRST})
