"""Resources that AWS takes minutes to create and to delete: NAT gateways, mount targets of EFS, filesystems of FSx."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.efs.models import EFSBackend
from moto.fsx.models import FSxBackend

from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.moto_gaps import FSX_STATE
from infra.targets.aws.rehearse.timeline import Timeline

_NAT, _TARGET, _LUSTRE = "NAT gateway", "EFS mount target", "FSx filesystem"
_ENDING = ("deleting", "deleted")


@contextmanager
def delay_resources(clock: Clock, timeline: Timeline) -> Iterator[None]:
    """Let resources become available, and disappear, in AWS's time; without this, moto does both at once."""
    with _delay_creation(clock, timeline), _delay_deletion(clock, timeline):
        yield


@contextmanager
def _delay_creation(clock: Clock, timeline: Timeline) -> Iterator[None]:
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
        begin(_NAT, _name_gateway(self, gateway), gateway, "state", "pending")
        return gateway

    def create_mount_target(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = create_target(self, *args, **kwargs)
        begin(_TARGET, _name_target(self, target), target, "life_cycle_state", "creating")
        return target

    def create_file_system(self: Any, *args: Any, **kwargs: Any) -> Any:
        system = create_fsx(self, *args, **kwargs)
        begin(_LUSTRE, _name_system(self, system), system, FSX_STATE, "CREATING")
        return system

    NatGatewayBackend.create_nat_gateway, EFSBackend.create_mount_target = create_nat_gateway, create_mount_target
    FSxBackend.create_file_system = create_file_system
    try:
        yield
    finally:
        NatGatewayBackend.create_nat_gateway, EFSBackend.create_mount_target = create_gateway, create_target
        FSxBackend.create_file_system = create_fsx


@contextmanager
def _delay_deletion(clock: Clock, timeline: Timeline) -> Iterator[None]:
    delete_gateway, delete_target = NatGatewayBackend.delete_nat_gateway, EFSBackend.delete_mount_target
    delete_fsx = FSxBackend.delete_file_system

    def begin(kind: str, subject: str, remove: Callable[[], object]) -> None:
        """Remove a resource after the delay; until then it is listed, and what it depends on cannot be deleted."""

        def finish() -> None:
            clock.wait(f"{kind} deletion", subject)
            remove()
            timeline.record(f"{kind} {subject}", "deleted")

        timeline.record(f"{kind} {subject}", "deleting")
        threading.Thread(target=finish, daemon=True).start()

    def delete_nat_gateway(self: Any, nat_gateway_id: str) -> Any:
        gateway = self.nat_gateways.get(nat_gateway_id)
        if gateway is None:
            return delete_gateway(self, nat_gateway_id)
        if gateway.state not in _ENDING:
            gateway.state = "deleting"
            begin(_NAT, _name_gateway(self, gateway), lambda: delete_gateway(self, nat_gateway_id))
        return gateway

    def delete_mount_target(self: Any, mount_target_id: str) -> None:
        target = self.mount_targets_by_id.get(mount_target_id)
        if target is None:
            delete_target(self, mount_target_id)
        elif target.life_cycle_state not in _ENDING:
            target.life_cycle_state = "deleting"
            begin(_TARGET, _name_target(self, target), lambda: delete_target(self, mount_target_id))

    def delete_file_system(self: Any, file_system_id: str, *args: Any, **kwargs: Any) -> Any:
        system = self.file_systems.get(file_system_id)
        answer = delete_fsx(self, file_system_id, *args, **kwargs)
        self.file_systems[file_system_id] = system
        if getattr(system, FSX_STATE, "") != "DELETING":
            setattr(system, FSX_STATE, "DELETING")
            begin(_LUSTRE, _name_system(self, system), lambda: self.file_systems.pop(file_system_id, None))
        return answer

    NatGatewayBackend.delete_nat_gateway, EFSBackend.delete_mount_target = delete_nat_gateway, delete_mount_target
    FSxBackend.delete_file_system = delete_file_system
    try:
        yield
    finally:
        NatGatewayBackend.delete_nat_gateway, EFSBackend.delete_mount_target = delete_gateway, delete_target
        FSxBackend.delete_file_system = delete_fsx


def _name_gateway(backend: Any, gateway: Any) -> str:
    """Return the zone of a NAT gateway: names, unlike ids, are the same in every rehearsal."""
    return str(backend.get_subnet(gateway.subnet_id).availability_zone)


def _name_target(backend: Any, target: Any) -> str:
    return f"{_find_name(backend.list_tags_for_resource(target.file_system_id))} {target.availability_zone_name}"


def _name_system(backend: Any, system: Any) -> str:
    return _find_name(backend.list_tags_for_resource(system.resource_arn))


def _find_name(tags: list[dict[str, str]]) -> str:
    return next((tag["Value"] for tag in tags if tag["Key"] == "Name"), "unnamed")
