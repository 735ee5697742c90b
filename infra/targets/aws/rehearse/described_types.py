"""Instance types outside the catalog in a rehearsal: what AWS answered before, or moto's copy of AWS's answers.

They make the spec valid before the rehearsal. Its `up` asks the simulated account again, as it would ask a real one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from cluster.catalog.instances import add_types
from cluster.spec import ClusterSpec
from infra.home import Home
from infra.targets.aws.account_types import Entries, list_missing, merge_types, read_stored_types
from infra.targets.aws.spec import region_of
from infra.targets.aws.validate.types import list_type_names


def load_types(spec: ClusterSpec) -> None:
    """Add the types of a spec that the catalog lacks to those of this process."""
    stored = read_stored_types(Home.of(os.environ).root)
    add_types(describe_types(list_type_names(spec).values(), stored, region_of(spec)))


def describe_types(names: Iterable[str], stored: Entries, region: str) -> Entries:
    """Return the stored types and those that moto describes in a region, in the form of the catalog."""
    offered = {offer["InstanceType"] for offer in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}
    missing = [name for name in list_missing(names, stored, region) if name in INSTANCE_TYPES and name in offered]
    return merge_types(stored, {name: INSTANCE_TYPES[name] for name in missing}, region)
