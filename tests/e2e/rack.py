"""Three machines that somebody owns, and a stack that makes a cluster of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from cluster import names
from infra.resources import ssh_key
from tests.e2e.bare_machines import BareMachines, describe_rack, open_machines
from tests.harness import Spec, Stack

HOSTS = ("head", "rack1-1", "rack1-2")
HEAD = HOSTS[0]
# The hosts' filesystem is a volume of this machine, which the pre-flight would take for a local one.
UNCHECKED = "--no-preflight"
INSIDE = "10.77.0"


@dataclass(frozen=True)
class Rack:
    """Three machines, and a stack that describes them."""

    machines: BareMachines
    stack: Stack


@contextmanager
def open_rack(make_stack: Callable[[str, Spec], Stack], folder: Path, hosts: Sequence[str] = HOSTS) -> Iterator[Rack]:
    """Start machines with a shared volume and a second network among them; remove them at the end."""
    key = ssh_key.generate("me")
    identity = folder / "id"
    identity.write_text(key.private)
    stack = make_stack("rack", {"target": "hosts"})
    labels = {"muster.cluster": stack.cluster}
    shared = docker.from_env().volumes.create(names.volume(stack.cluster, "shared"), labels=labels)
    env_cache = {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env"}
    mounts = {
        host: ({"volume": str(shared.name), "target": "/shared"}, env_cache | {"read_only": host != HEAD})
        for host in hosts
    }
    try:
        with open_machines(stack.cluster, hosts, key.public, mounts) as machines:
            # A second network, which this machine does not reach: nodes use it among each other.
            for number, host in enumerate(hosts, 1):
                machines.run(host, f"ip address add {INSIDE}.{number}/24 dev eth0")
                machines.described[host]["cluster_address"] = f"{INSIDE}.{number}"
            stack.spec |= describe_rack(machines, HEAD, identity)
            yield Rack(machines, stack)
    finally:
        shared.remove(force=True)
