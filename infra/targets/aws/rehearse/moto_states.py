"""Resources that AWS takes minutes to create: NAT gateways, mount targets of EFS, and filesystems of FSx."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.efs.models import EFSBackend
from moto.fsx.models import FSxBackend

from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.moto_gaps import FSX_STATE
from infra.targets.aws.rehearse.timeline import Timeline


@contextmanager
def delay_resources(clock: Clock, timeline: Timeline) -> Iterator[None]:
    """Let resources become available in AWS's time; without this, moto has them available at once."""
    create_gateway, create_target = NatGatewayBackend.create_nat_gateway, EFSBackend.create_mount_target
    create_fsx = FSxBackend.create_file_system

    def begin(kind: str, subject: str, resource: Any, attribute: str, state: str) -> None:
        """Set the state in which a resource begins, and `available` in the same spelling after the delay."""

        def finish() -> None:
            clock.wait(kind, subject)
            # It may have been deleted meanwhile.
            if getattr(resource, attribute) == state:
                setattr(resource, attribute, "AVAILABLE" if state.isupper() else "available")
                timeline.record(f"{kind} {subject}", "available")

        setattr(resource, attribute, state)
        timeline.record(f"{kind} {subject}", state.lower())
        threading.Thread(target=finish, daemon=True).start()

    def create_nat_gateway(self: Any, *args: Any, **kwargs: Any) -> Any:
        gateway = create_gateway(self, *args, **kwargs)
        zone = str(self.get_subnet(gateway.subnet_id).availability_zone)
        begin("NAT gateway", zone, gateway, "state", "pending")
        return gateway

    def create_mount_target(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = create_target(self, *args, **kwargs)
        name = _find_name(self.list_tags_for_resource(target.file_system_id))
        begin("EFS mount target", f"{name} {target.availability_zone_name}", target, "life_cycle_state", "creating")
        return target

    def create_file_system(self: Any, *args: Any, **kwargs: Any) -> Any:
        system = create_fsx(self, *args, **kwargs)
        name = _find_name(self.list_tags_for_resource(system.resource_arn))
        begin("FSx filesystem", name, system, FSX_STATE, "CREATING")
        return system

    NatGatewayBackend.create_nat_gateway, EFSBackend.create_mount_target = create_nat_gateway, create_mount_target
    FSxBackend.create_file_system = create_file_system
    try:
        yield
    finally:
        NatGatewayBackend.create_nat_gateway, EFSBackend.create_mount_target = create_gateway, create_target
        FSxBackend.create_file_system = create_fsx


def _find_name(tags: list[dict[str, str]]) -> str:
    return next((tag["Value"] for tag in tags if tag["Key"] == "Name"), "unnamed")
