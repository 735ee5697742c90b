"""The resources of a cluster on this machine, found by label: for receipts, and if the state file is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import docker

from cluster import names
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import docker_network, docker_volume
from infra.targets.local.strays import remove_container
from infra.targets.target import Leftover


def find(cluster: str) -> list[Leftover]:
    """Return the resources of a cluster that this MUSTER_HOME created, in the order of removal."""
    with engine_client.api_session(f"cluster {cluster}") as api:
        filters = {"label": f"{names.CLUSTER}={cluster}"}
        containers = [(c["Names"][0].lstrip("/"), c["Labels"]) for c in api.containers(all=True, filters=filters)]
        networks = [(n["Name"], n["Labels"]) for n in api.networks(filters=filters)]
        volumes = [(v["Name"], v["Labels"]) for v in api.volumes(filters=filters)["Volumes"] or []]
        owner = _owner([labels for _name, labels in containers])
        groups = [(group, owner) for group in cgroup_tree.groups(cluster)]
    kinds = {"container": containers, "network": networks, "volume": volumes, "cgroup": groups}
    return [
        Leftover(
            kind,
            name,
            labels.get(names.CREATED, ""),
            labels.get(names.STACK, ""),
            labels.get(names.HOME, ""),
            is_node=kind == "container",
        )
        for kind, resources in kinds.items()
        for name, labels in sorted(resources)
        if not engine_client.is_foreign(labels)
    ]


def clusters_of(stack: str) -> list[str]:
    """Return the clusters whose containers, networks or volumes carry the label of a stack."""
    filters = {"label": f"{names.STACK}={stack}"}
    with engine_client.api_session(f"stack {stack}") as api:
        resources = [*api.containers(all=True, filters=filters), *api.networks(filters=filters)]
        resources += api.volumes(filters=filters)["Volumes"] or []
    return sorted({resource["Labels"][names.CLUSTER] for resource in resources})


def remove(leftover: Leftover) -> None:
    """Remove a resource."""
    with engine_client.api_session(f"{leftover.kind} {leftover.name}") as api:
        _REMOVERS[leftover.kind](api, leftover.name)


def _owner(containers: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the owner's labels from a node: cgroups themselves have none; empty without nodes."""
    owned = (labels for labels in containers if names.STACK in labels)
    return {key: value for key, value in next(owned, {}).items() if key in (names.STACK, names.HOME)}


def _remove_group(_api: docker.APIClient, path: str) -> None:
    _muster, cluster, *node = path.split("/")
    if node:
        cgroup_tree.remove_node(cluster, node[0])
    else:
        cgroup_tree.remove_cluster(cluster)


_REMOVERS: dict[str, Callable[[docker.APIClient, str], None]] = {
    "container": remove_container,
    "network": docker_network.remove,
    "volume": docker_volume.remove,
    "cgroup": _remove_group,
}
