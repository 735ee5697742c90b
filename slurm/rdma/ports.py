"""Choose the RDMA ports that jobs use on a node, and the environment by which NCCL uses exactly these. Pure functions.

NCCL itself assigns ports to GPUs by their distance on the PCI bus, but takes every active port for part of the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv6Address

from slurm.rdma.sysfs import Gid, LinkLayer, RdmaFacts, RdmaPort

LINK_LAYERS: dict[str, LinkLayer] = {"infiniband": "InfiniBand", "roce": "Ethernet"}
"""Link layer of each fabric that uses RDMA ports; EFA has its own drivers and libraries."""
ROCE_V2 = "RoCE v2"


class RdmaError(ValueError):
    """The node's ports cannot be used as its fabric; jobs would use TCP instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def select_ports(facts: RdmaFacts, fabric: str) -> tuple[RdmaPort, ...]:
    """Return the ports that jobs use; raise RdmaError if there is none, or if one cannot be used.

    On machines with more ports than the fabric has, others lead to storage or to the network of the operating system:
    those of the fabric are next to a GPU, below the same PCI root port. If no port is, as in virtual machines, those at
    the highest rate are taken.
    """
    layer = LINK_LAYERS[fabric]
    candidates = [port for port in facts.ports if port.link_layer == layer]
    active = [port for port in candidates if port.active]
    if not active:
        raise RdmaError(_describe_none(candidates, layer), _fix_none(candidates, layer))
    fastest = max(port.gbps for port in active)
    near = [port for port in active if _is_near_gpu(port, facts)]
    chosen = near or [port for port in active if port.gbps == fastest]
    for port in chosen if fabric == "roce" else ():
        find_roce_gid(port)
    return tuple(chosen)


def build_environment(ports: Sequence[RdmaPort], fabric: str) -> dict[str, str]:
    """Return the variables with which NCCL uses these ports and nothing else: it fails rather than uses TCP."""
    # The first `=` demands exact names: without it, mlx5_1 would also mean mlx5_10.
    environment = {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={','.join(port.name for port in ports)}"}
    if fabric != "roce":
        return environment
    gids = [find_roce_gid(port) for port in ports]
    if len({gid.index for gid in gids}) == 1:
        return {**environment, "NCCL_IB_GID_INDEX": str(gids[0].index)}
    # NCCL has one index for all ports. Without it, NCCL looks for RoCE v2 and this kind of address on each port.
    families = {"AF_INET" if is_ipv4(gid) else "AF_INET6" for gid in gids}
    if len(families) > 1:
        listed = ", ".join(f"{port.name} {gid.address}" for port, gid in zip(ports, gids))  # noqa: B905  # Python 3.9
        fix = "give the interfaces of all ports an IPv4 address"
        raise RdmaError(f"some ports have only IPv6 addresses: {listed}", fix)
    return {**environment, "NCCL_IB_ADDR_FAMILY": families.pop()}


def find_roce_gid(port: RdmaPort) -> Gid:
    """Return the GID by which routed RoCE traffic reaches the port: version 2, IPv4 before IPv6; raise RdmaError.

    Addresses that are valid only on one link are left out: routers do not forward them.
    """
    usable = [gid for gid in port.gids if gid.kind == ROCE_V2 and not _is_link_local(gid)]
    if not usable:
        netdev = next((gid.netdev for gid in port.gids if gid.netdev), "its interface")
        message = f"port {port.name} has no GID of type '{ROCE_V2}' with an IP address"
        raise RdmaError(message, f"give {netdev} an IPv4 address: each address becomes a GID")
    return min(usable, key=lambda gid: (not is_ipv4(gid), gid.index))


def is_ipv4(gid: Gid) -> bool:
    """Return whether the GID is an IPv4 address."""
    return IPv6Address(gid.address).ipv4_mapped is not None


def _is_link_local(gid: Gid) -> bool:
    address = IPv6Address(gid.address)
    mapped = address.ipv4_mapped
    return mapped.is_link_local if mapped else address.is_link_local


def _is_near_gpu(port: RdmaPort, facts: RdmaFacts) -> bool:
    # A GPU's own path is below its root port, so a port that shares it is behind the same PCIe switch.
    return bool(port.pci_path) and any(gpu[:1] == port.pci_path[:1] for gpu in facts.gpus)


def _describe_none(candidates: Sequence[RdmaPort], layer: LinkLayer) -> str:
    if not candidates:
        return f"has no RDMA device with link layer {layer}"
    states = ", ".join(f"{port.name} is {port.describe_state()}" for port in candidates)
    return f"has no active RDMA port with link layer {layer}: {states}"


def _fix_none(candidates: Sequence[RdmaPort], layer: LinkLayer) -> str:
    if not candidates:
        return "load the driver (`modprobe mlx5_ib`) until `ls /sys/class/infiniband` lists it, or write `fabric: tcp`"
    if layer == "InfiniBand" and any(port.state == "INIT" for port in candidates):
        return "start a subnet manager (opensm, or that of a switch), or write `fabric: tcp`"
    return "check cables and switch ports, bring the interfaces up, or write `fabric: tcp`"
