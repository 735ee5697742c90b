"""Find the resources of a cluster on Nebius by their labels, and remove them: for receipts, or without a state file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from grpc import StatusCode
from nebius.aio.service_error import RequestError

from cluster import names
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.nebius.client import Cloud, Message, open_cloud
from infra.targets.nebius.cost import price_machine
from infra.targets.nebius.kinds import KINDS, Kind
from infra.targets.nebius.refusals import explain_error, is_code
from infra.targets.rented.removal import retry_while_in_use
from infra.targets.target import Deployment, Leftover, Leftovers

_WHERE = "nebius.project"
_INSTANCE, _DISK, _FILESYSTEM, _GROUP, _RULE = "instance", "disk", "filesystem", "security group", "security rule"
# Kinds that must be gone before a resource of the key can be removed.
_USERS = {
    _DISK: {_INSTANCE},
    "GPU cluster": {_INSTANCE},
    _FILESYSTEM: {_INSTANCE},
    _GROUP: {_INSTANCE, _RULE},
    "subnet": {_INSTANCE},
    "network": {_INSTANCE, _GROUP, "subnet"},
}


def find_leftovers(deployment: Deployment) -> Leftovers:
    """Return the resources in a project that have the cluster's label, in the order of removal."""
    home = names.home_labels(Home.of(os.environ).root)[names.HOME]
    leftovers: list[Leftover] = []
    unseen: dict[str, str] = {}
    with open_cloud(_WHERE) as cloud:
        for kind in KINDS.values():
            try:
                leftovers += [_describe(kind, resource) for resource in _list(cloud, kind, deployment, home)]
            except RequestError as error:
                if is_code(error, StatusCode.UNAUTHENTICATED):
                    raise
                unseen[kind.name] = str(explain_error("", error))
    return Leftovers(leftovers, tuple(f"{kind}: {why}" for kind, why in unseen.items()), frozenset(unseen))


def remove_leftover(leftover: Leftover, until: float) -> None:
    """Delete a resource; if it is in use, retry until `until` (time.monotonic), then raise InUseError."""
    kind = KINDS[leftover.kind]
    id_ = leftover.name.rpartition(" ")[2]

    def remove() -> None:
        with open_cloud(_WHERE) as cloud:
            cloud.delete(kind, id_)

    retry_while_in_use(remove, until)


def measure_leftover(leftover: Leftover) -> int | None:
    """Return the capacity of a filesystem in bytes, which is what it costs; None if it does not answer."""
    try:
        with open_cloud(_WHERE) as cloud:
            filesystem = cloud.get(KINDS[_FILESYSTEM], leftover.name.rpartition(" ")[2])
    except ResourceError:
        return None
    size = (filesystem or {}).get("status", {}).get("sizeBytes")
    return int(size) if size else None


def _list(cloud: Cloud, kind: Kind, deployment: Deployment, home: str) -> Iterator[Message]:
    """Yield the cluster's resources of a kind; rules are listed by the security group that they are in."""
    resources = cloud.list(kind, deployment.account)
    if kind.name == _RULE:
        groups = _list(cloud, KINDS[_GROUP], deployment, home)
        resources = (rule for group in groups for rule in _list_rules(cloud, str(group["metadata"]["id"])))
    for resource in resources:
        labels = resource["metadata"].get("labels", {})
        if labels.get(names.CLUSTER) == deployment.cluster and labels.get(names.HOME) == home:
            yield resource


def _list_rules(cloud: Cloud, group: str) -> Iterator[Message]:
    try:
        yield from cloud.list(KINDS[_RULE], group)
    except RequestError as error:
        # The group may have been removed, with its rules, since it was listed.
        if not is_code(error, StatusCode.NOT_FOUND):
            raise


def _describe(kind: Kind, resource: Message) -> Leftover:
    metadata = resource["metadata"]
    labels = metadata.get("labels", {})
    price = _price_instance(resource.get("spec", {})) if kind.name == _INSTANCE else None
    return Leftover(
        kind.name,
        f"{metadata.get('name', '')} {metadata['id']}",
        created=metadata.get("createdAt", ""),
        stack=labels.get(names.STACK, ""),
        home=labels.get(names.HOME, ""),
        usd_per_hour=price or 0.0,
        keep_reason="keep: true" if labels.get(names.KEEP) == "true" else "",
        is_node=kind.name == _INSTANCE,
        used_by=frozenset(_USERS.get(kind.name, ())),
    )


def _price_instance(spec: Message) -> float | None:
    machine = spec.get("resources", {})
    name = f"{machine.get('platform')}/{machine.get('preset')}"
    return price_machine(name, preemptible="preemptible" in spec)
