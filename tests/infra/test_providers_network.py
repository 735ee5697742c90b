"""Which address range a network gets when others are made at the same moment."""

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
    """Another network takes the first free range right after it was looked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: dict[str, IPv4Network] = {}
        monkeypatch.setattr(docker_network, "_taken", self._look)

    def _look(self, _api: object) -> dict[str, IPv4Network]:
        seen = dict(self.taken)
        self.taken["the Docker network muster-other"] = IPv4Network(FIRST)
        return seen

    def create_network(self, _name: str, *, ipam: dict[str, Any], **_options: object) -> None:
        self.subnet = ipam["Config"][0]["Subnet"]
        if IPv4Network(self.subnet) in self.taken.values():
            raise APIError("refused", explanation="Pool overlaps with other one on this address space")

    def inspect_network(self, _name: str) -> dict[str, Any]:
        return {"IPAM": {"Config": [{"Subnet": self.subnet}]}}


def test_picked_range_that_another_took_is_picked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made = docker_network._make(RacingEngine(monkeypatch), "muster-demo", PROPS)
    assert made["IPAM"]["Config"][0]["Subnet"] == SECOND


def test_given_range_that_another_took_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ResourceError, match=r"network.cidr: 10.88.0.0/24 is in use: it overlaps the Docker network muster-o"
    ):
        docker_network._make(RacingEngine(monkeypatch), "muster-demo", PROPS | {"cidr": FIRST})
