"""The Docker network that stands for the VPC of a rehearsal, with an address range that nothing else here uses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from cluster import names
from infra.engine.stop import Stop
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.cleanup import remove_all, remove_network
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build.docker_network import list_used_ranges

# Clusters on this machine use 10.88.0.0/16, which is also the default range of a VPC.
_RANGES = IPv4Network("10.96.0.0/12")
_PREFIX = 20
_ADDRESS_TIMEOUT_S, _ADDRESS_POLL_S = 30.0, 0.2


@contextmanager
def claim_network(cluster: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Create the network of a rehearsal, yield its address range, and remove it at the end.

    What an earlier rehearsal that was killed has left is removed first.
    """
    if errors := remove_all(cluster, Disks(cluster, labels)):
        what = f"an earlier rehearsal cannot be removed: {'; '.join(errors)}"
        raise Stop(what, f"remove the containers, networks and volumes with the label {names.CLUSTER}={cluster}")
    cidr = _create_network(names.network(cluster), labels)
    try:
        _wait_for_address(find_gateway(cidr))
        yield cidr
    finally:
        with suppress(ResourceError):  # The next rehearsal tries again.
            remove_network(names.network(cluster))


def find_gateway(cidr: str) -> str:
    """Return the address that this machine has in the network."""
    return str(IPv4Network(cidr)[1])


def choose_range(taken: Sequence[IPv4Network]) -> str:
    """Return the first address range that overlaps none of `taken`; raise Stop if there is none."""
    free = (network for network in _RANGES.subnets(new_prefix=_PREFIX) if not any(map(network.overlaps, taken)))
    if (first := next(free, None)) is None:
        what = (
            f"no /{_PREFIX} of {_RANGES} is free for a rehearsal: networks of Docker or routes of this machine use all"
        )
        raise Stop(what, "remove Docker networks that are not used, or the route")
    return str(first)


def _create_network(name: str, labels: Mapping[str, str]) -> str:
    """Create the network, without a route out, with the first range that Docker accepts, and return the range."""
    refused: list[IPv4Network] = []
    with engine_client.api_session("network") as api:
        while True:
            cidr = choose_range([*list_used_ranges(api).values(), *refused])
            pool = IPAMPool(subnet=cidr, gateway=find_gateway(cidr))
            ipam = IPAMConfig(pool_configs=[pool])
            try:
                api.create_network(name, driver="bridge", internal=True, labels=dict(labels), ipam=ipam)
            except APIError as error:
                # Another rehearsal has taken the range since the list was read: only Docker can decide between them.
                if "overlap" not in str(error.explanation).lower():
                    raise
                refused.append(IPv4Network(cidr))
            else:
                return cidr


def _wait_for_address(address: str) -> None:
    """Wait until this machine has the address of the gateway, which it gets shortly after the network is created."""
    deadline = time.monotonic() + _ADDRESS_TIMEOUT_S
    while True:
        try:
            with socket.socket() as trial:
                trial.bind((address, 0))
            return
        except OSError as error:
            if time.monotonic() > deadline:
                what = f"this machine does not have the address {address} of its new Docker network ({error.strerror})"
                raise Stop(what, "use a Docker engine that runs on this machine") from error
        time.sleep(_ADDRESS_POLL_S)
