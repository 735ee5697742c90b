"""The resources of a cluster on this machine, found by label: for receipts, and if the state file is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docker
from docker.errors import NotFound

from cluster import names
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import docker_network, docker_volume
from infra.targets.local.caches import measure_folders
from infra.targets.local.strays import remove_container
from infra.targets.target import Leftover

_VOLUME_TYPE = ":DockerVolume"


def find(cluster: str, state: Path) -> list[Leftover]:
    """Return the resources of a cluster that this MUSTER_HOME created, in the order of removal.

    `state` is the stack's Pulumi state; it may be missing.
    """
    with engine_client.api_session(f"cluster {cluster}") as api:
        filters = {"label": f"{names.CLUSTER}={cluster}"}
        containers = [(c["Names"][0].lstrip("/"), c["Labels"]) for c in api.containers(all=True, filters=filters)]
        networks = [(n["Name"], n["Labels"]) for n in api.networks(filters=filters)]
        volumes = [(v["Name"], v["Labels"]) for v in api.volumes(filters=filters)["Volumes"] or []]
        owner = _owner([labels for _name, labels in containers])
        groups = [(group, owner) for group in cgroup_tree.groups(cluster)]
    protected = read_protected_volumes(state)
    kinds = {"container": containers, "network": networks, "volume": volumes, "cgroup": groups}
    return [
        Leftover(
            kind,
            name,
            labels.get(names.CREATED, ""),
            labels.get(names.STACK, ""),
            labels.get(names.HOME, ""),
            keep_reason="keep: true" if kind == "volume" and _is_kept(name, labels, protected) else "",
            is_node=kind == "container",
        )
        for kind, resources in kinds.items()
        for name, labels in sorted(resources)
        if not engine_client.is_foreign(labels)
    ]


def read_protected_volumes(state: Path) -> dict[str, bool]:
    """Return for each volume in a Pulumi state whether it is protected; nothing if the state cannot be read."""
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"].get("resources") or []
        return {r["id"]: bool(r.get("protect")) for r in resources if r.get("type", "").endswith(_VOLUME_TYPE)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def measure(leftover: Leftover) -> int | None:
    """Return the bytes in a volume; None if its files cannot be read from here."""
    with engine_client.api_session(f"{leftover.kind} {leftover.name}") as api:
        try:
            return measure_folders(Path(api.inspect_volume(leftover.name)["Mountpoint"]))
        except NotFound:
            return None


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


def _is_kept(volume: str, labels: Mapping[str, str], protected: Mapping[str, bool]) -> bool:
    """Return whether the last `up` was told to keep a volume; without a state, whether the first one was."""
    return protected.get(volume, names.KEEP in labels)


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
