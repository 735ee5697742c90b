"""Delete a resource on Azure."""

from __future__ import annotations

from infra.resources.error import InUseError
from infra.targets.azure.client import open_cloud
from infra.targets.azure.kinds import GROUP, Kind


def delete_resource(kind: Kind, id_: str, where: str) -> None:
    """Delete a resource, if it exists; a resource group only if it is empty, because everything in it would go."""
    with open_cloud(where) as cloud:
        if kind == GROUP:
            inside = [str(entry["id"]).rpartition("/")[2] for entry in cloud.list(f"{id_}/resources", kind.api)]
            if inside:
                what = f"resource group {id_.rpartition('/')[2]} is not empty: {', '.join(sorted(inside))}"
                raise InUseError(where, what, "remove these, or keep the group for them")
        cloud.delete(kind, id_)
