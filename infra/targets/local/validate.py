"""Rules for a local cluster: addresses, ports, volumes and images of Docker, and the size of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from cluster.spec.model import SlurmRelease
from infra.plan import PlannedNode
from infra.targets.local.plan import plan
from infra.targets.local.spec import own_image
from infra.targets.mixins import HostFacts
from infra.validate.network import parse_range

AUTOMATIC_PREFIX = 24
# The network's own address, the gateway and the broadcast address.
NOT_FOR_NODES = 3


def check_range_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse an address range that is too small for the nodes."""
    network = parse_range(spec.network.cidr) if spec.network.cidr else None
    if spec.network.cidr and network is None:
        return
    prefix = network.prefixlen if network else AUTOMATIC_PREFIX
    nodes = len(plan(spec).nodes)
    free = max(0, 2 ** (32 - prefix) - NOT_FOR_NODES)
    if nodes > free:
        needed = 32 - (nodes + NOT_FOR_NODES - 1).bit_length()
        larger = network.supernet(new_prefix=needed) if network else f"10.88.0.0/{needed}"
        room = format_count(free, "node")
        message = f"a /{prefix} has room for {room}, the cluster has {nodes}; allowed: /{needed} or larger"
        yield error("cidr_small", "network.cidr", message, f"write for example `cidr: {larger}`")


def check_login_port(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a published port without a login node or without egress."""
    port, where = spec.login.ssh_port, "login.ssh_port"
    if port is None:
        return
    if not spec.login.enabled:
        message = f"{port} cannot be published: there is no login node (login.enabled is false)"
        yield error("port_without_login", where, message, "remove it, or write `enabled: true`")
    if not spec.network.egress:
        message = f"{port} cannot be published: Docker publishes no port of a network without egress"
        yield error("port_without_egress", where, message, "remove it, or write `egress: true` under `network:`")


def check_volume_sizes(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about sizes of Docker volumes, which have no effect."""
    for name, storage in spec.storage.items():
        if storage.kind == "volume" and storage.size_gb is not None:
            message = f"{storage.size_gb} has no effect: a Docker volume is as large as the disk it lies on"
            yield warning("size_ignored", f"storage.{name}.size_gb", message, "remove it")


def check_image_release(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse an image with another release of Slurm than the spec's."""
    image, release = own_image(spec), spec.software.slurm
    has = _read_release(image) if image else release
    if has != release:
        message = f"'{image}' has Slurm {has}; software.slurm is {release}"
        fix = f"name one that `muster image list` shows for Slurm {release}"
        if has in get_args(SlurmRelease):
            fix += f', or write `software: {{slurm: "{has}"}}`'
        yield error("image_slurm", "local.image", message, fix)


def check_image_exists(spec: ClusterSpec, host: HostFacts) -> Iterator[Issue]:
    """Refuse an image that this machine does not have."""
    image = own_image(spec)
    if image is None or host.images is None or image in host.images:
        return
    release = spec.software.slurm
    fitting = [built for built in host.images if _read_release(built) == release]
    message = f"'{image}' does not exist on this machine; allowed: {', '.join(fitting) or f'none for Slurm {release}'}"
    fix = "build one with `muster image build` and name it, or remove the property to use the image of `make setup`"
    yield error("image_missing", "local.image", message, fix)


def check_cpus(spec: ClusterSpec, host: HostFacts) -> Iterator[Issue]:
    """Refuse nodes with more CPUs than this machine has."""
    for owner, node in _kinds(spec).items():
        if node.cpus > host.cpus:
            message = f"{node.cpus} is more CPUs than this machine has; allowed: 1 to {host.cpus}"
            yield error("host_cpus", f"{owner}.size.cpus", message, f"write `size: {{cpus: {host.cpus}}}`")


def check_memory(spec: ClusterSpec, host: HostFacts) -> Iterator[Issue]:
    """Refuse nodes with more memory than this machine has."""
    for owner, node in _kinds(spec).items():
        if node.memory_mb > host.memory_mb:
            message = f"{node.memory_mb} is more MiB than this machine has; allowed: 512 to {host.memory_mb}"
            yield error("host_memory", f"{owner}.size.memory_mb", message, "write a smaller `memory_mb`")


def check_total_memory(spec: ClusterSpec, host: HostFacts) -> Iterator[Issue]:
    """Warn if the limits of all nodes exceed the memory of this machine; limits are not reservations."""
    nodes = plan(spec).nodes
    total = sum(node.memory_mb for node in nodes)
    if total > host.memory_mb:
        message = f"the limits of {len(nodes)} nodes add up to {total} MiB; this machine has {host.memory_mb} MiB"
        largest = max(_kinds(spec).items(), key=lambda owned: owned[1].memory_mb)[0]
        fix = (
            f"lower `{largest}.size.memory_mb` or the counts, or accept that the kernel kills jobs when memory runs out"
        )
        yield warning("host_memory_total", "groups", message, fix)


def check_cgroups(spec: ClusterSpec, host: HostFacts) -> Iterator[Issue]:
    """Warn if Slurm probably cannot limit jobs; only the nodes know which controllers they get."""
    if not host.can_limit_memory and spec.slurm.cgroups != "none":
        message = f"{spec.slurm.cgroups} needs cgroups with a memory controller, and Docker finds none on this machine"
        fix = "enable the controller (`cgroup_enable=memory` on the kernel's command line), or write `cgroups: none`: "
        yield warning("host_cgroups", "slurm.cgroups", message, fix + "jobs then run without limits")


def _read_release(image: str) -> str:
    """Return the release of Slurm that the tag of a built image names."""
    return image.partition(":")[2].partition("-")[0]


def _kinds(spec: ClusterSpec) -> dict[str, PlannedNode]:
    """Return a node of each kind, by the property that sizes it."""
    return {f"groups.{node.group}" if node.group else node.role: node for node in reversed(plan(spec).nodes)}


SPEC_RULES: tuple[Callable[[ClusterSpec], Iterator[Issue]], ...] = (
    check_range_size,
    check_login_port,
    check_volume_sizes,
    check_image_release,
)
HOST_RULES: tuple[Callable[[ClusterSpec, HostFacts], Iterator[Issue]], ...] = (
    check_image_exists,
    check_cpus,
    check_memory,
    check_total_memory,
    check_cgroups,
)
