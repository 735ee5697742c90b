"""Arguments of a launch template: the machine of a group and how it is bought.

Each launch adds the place and the network interfaces (launcher/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.spec import NodeGroup
from infra.targets.aws.launcher.fleet import Purchase
from infra.targets.aws.plan.capacity import RESERVED

# A hop limit of 1 keeps containers, which are one hop further away, from the machine's credentials.
METADATA = {
    "http_endpoint": "enabled",
    "http_tokens": "required",
    "http_put_response_hop_limit": 1,
    "instance_metadata_tags": "enabled",
}
ROOT_DEVICE = "/dev/sda1"
ROOT_GB = 200
"""Root volume of a compute node, unless its group has `root_gb`."""
ROOT_IOPS, ROOT_MBS = 6000, 500
TAGGED = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class Machine:
    """What a template is built from; Pulumi outputs are passed through."""

    instance_type: str
    image: Any
    profile_arn: Any
    key_arn: Any
    user_data: Any
    """In base64."""
    tags: Mapping[str, str]
    root_gb: int = ROOT_GB


def root_gb(group: NodeGroup) -> int:
    """Return the size of the root volume of a group's nodes."""
    return group.root_gb or ROOT_GB


def arguments(machine: Machine, purchase: Purchase, reservation: str | None = None) -> dict[str, Any]:
    """Return the arguments, without interfaces and placement group, which depend on the zone of each launch."""
    return {
        "image_id": machine.image,
        "instance_type": machine.instance_type,
        "iam_instance_profile": {"arn": machine.profile_arn},
        "user_data": machine.user_data,
        "metadata_options": METADATA,
        "block_device_mappings": [_root(machine)],
        "instance_initiated_shutdown_behavior": "terminate",
        "ebs_optimized": "true",
        "tag_specifications": [{"resource_type": kind, "tags": dict(machine.tags)} for kind in TAGGED],
        "update_default_version": True,
        **_market(purchase),
        **_reservation(purchase, reservation),
    }


def _root(machine: Machine) -> dict[str, Any]:
    return {
        "device_name": ROOT_DEVICE,
        "ebs": {
            "volume_size": machine.root_gb,
            "volume_type": "gp3",
            "iops": ROOT_IOPS,
            "throughput": ROOT_MBS,
            "encrypted": "true",
            "kms_key_id": machine.key_arn,
            "delete_on_termination": "true",
        },
    }


def _market(purchase: Purchase) -> dict[str, Any]:
    if purchase == "block":
        return {"instance_market_options": {"market_type": "capacity-block"}}
    if purchase == "spot":
        spot = {"spot_instance_type": "one-time", "instance_interruption_behavior": "terminate"}
        return {"instance_market_options": {"market_type": "spot", "spot_options": spot}}
    return {}


def _reservation(purchase: Purchase, reservation: str | None) -> dict[str, Any]:
    if purchase not in RESERVED or reservation is None:
        return {}
    key = "capacity_reservation_id" if reservation.startswith("cr-") else "capacity_reservation_resource_group_arn"
    return {"capacity_reservation_specification": {"capacity_reservation_target": {key: reservation}}}
