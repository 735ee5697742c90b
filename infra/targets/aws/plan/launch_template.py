"""Arguments of a launch template: how one machine of a group is made and bought; where is up to whoever launches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.targets.aws.launcher.fleet import Purchase
from infra.targets.aws.plan.capacity import RESERVED
from infra.targets.aws.plan.interfaces import Interface

# Only processes of the machine itself may ask for its identity: a container would be one hop further away.
METADATA = {
    "http_endpoint": "enabled",
    "http_tokens": "required",
    "http_put_response_hop_limit": 1,
    "instance_metadata_tags": "enabled",
}
ROOT_DEVICE = "/dev/sda1"
ROOT_GB = 200
ROOT_IOPS, ROOT_MBS = 6000, 500
TAGGED = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class Machine:
    """What the template is made of. Values that the engine knows only later go through untouched."""

    instance_type: str
    interfaces: Sequence[Interface]
    security_groups: Sequence[Any]
    image: Any
    profile_arn: Any
    key_arn: Any
    user_data: Any
    """Base64."""
    tags: Mapping[str, str]
    root_gb: int = ROOT_GB


def arguments(machine: Machine, purchase: Purchase, reservation: str | None = None) -> dict[str, Any]:
    """Subnet and placement group are of a zone, and are named with it at each launch."""
    return {
        "image_id": machine.image,
        "instance_type": machine.instance_type,
        "iam_instance_profile": {"arn": machine.profile_arn},
        "user_data": machine.user_data,
        "metadata_options": METADATA,
        "block_device_mappings": [_root(machine)],
        "network_interfaces": [_interface(one, machine.security_groups) for one in machine.interfaces],
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


def _interface(interface: Interface, security_groups: Sequence[Any]) -> dict[str, Any]:
    """No subnet: whoever launches names it. An address is asked for nowhere, least of all a public one, which a
    machine with several interfaces could not have and an EFA-only interface refuses."""
    made: dict[str, Any] = {
        "network_card_index": interface.card,
        "device_index": interface.device,
        "interface_type": interface.kind,
        "security_groups": list(security_groups),
        "delete_on_termination": "true",
    }
    primary = interface.card == 0 and interface.device == 0
    return made | ({"associate_public_ip_address": "false"} if primary else {})


def _market(purchase: Purchase) -> dict[str, Any]:
    if purchase == "block":
        return {"instance_market_options": {"market_type": "capacity-block"}}
    if purchase == "spot":
        ends = {"spot_instance_type": "one-time", "instance_interruption_behavior": "terminate"}
        return {"instance_market_options": {"market_type": "spot", "spot_options": ends}}
    return {}


def _reservation(purchase: Purchase, reservation: str | None) -> dict[str, Any]:
    if purchase not in RESERVED or reservation is None:
        return {}
    key = "capacity_reservation_id" if reservation.startswith("cr-") else "capacity_reservation_resource_group_arn"
    return {"capacity_reservation_specification": {"capacity_reservation_target": {key: reservation}}}
