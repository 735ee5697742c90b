"""Operations that a cluster needs and moto lacks: they store what was sent and return it in AWS's format."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from moto.budgets.responses import BudgetsResponse
from moto.core.exceptions import JsonRESTError
from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import ec2_backends, launch_templates
from moto.ec2.models.amis import Ami, AmiBackend
from moto.ec2.models.elastic_network_interfaces import NetworkInterface, NetworkInterfaceBackend
from moto.ec2.models.instances import Instance
from moto.ec2.models.nat_gateways import NatGateway, NatGatewayBackend
from moto.ec2.models.security_groups import SecurityGroupBackend
from moto.ec2.models.subnets import SubnetBackend
from moto.efs.models import MountTarget, efs_backends
from moto.efs.responses import EFSResponse
from moto.fsx import models as fsx
from moto.fsx.responses import FSxResponse
from moto.iam.access_control import IAMPolicy
from moto.iam.exceptions import NotFoundException
from moto.iam.models import IAMBackend
from moto.s3.models import FakeBucket
from moto.ssm.models import Parameter, ssm_backends

from infra.targets.aws.rehearse.moto_server import ACCOUNT, REGION

Records = dict[str, dict[str, Any]]
FSX_STATE = "muster_lifecycle"
"""Attribute of an FSx filesystem of moto with its lifecycle state; without it, the filesystem is available."""


def apply() -> None:
    """Add the missing operations to moto and correct others."""
    for response, functions in (
        (FSxResponse, (update_file_system, create_association, describe_associations, delete_association)),
        (EFSResponse, (put_backup_policy,)),
        (BudgetsResponse, (create_budget_action, describe_budget_action, delete_budget_action, update_budget)),
    ):
        for function in functions:
            name = function.__name__.replace("association", "data_repository_association")
            if not hasattr(response, name):
                setattr(response, name, function)
    FakeBucket.get_permission = _permission
    if fsx.FileSystem.to_dict is not _file_system:
        fsx.FileSystem.to_dict = _file_system
        launch_templates.LaunchTemplateVersion.__init__ = _version
        Instance.add_block_device = _disk
        Instance.attach_eni = _interface
        NatGatewayBackend.delete_nat_gateway = _end_nat
        AmiBackend.create_image = _create_image
        SecurityGroupBackend._delete_security_group = _delete_group
        SubnetBackend.delete_subnet = _delete_subnet
        NetworkInterfaceBackend.create_network_interface = _create_interface
        IAMBackend.remove_role_from_instance_profile = _remove_role


_describe_file_system = fsx.FileSystem.to_dict
_make_version = launch_templates.LaunchTemplateVersion.__init__
_add_disk, _attach = Instance.add_block_device, Instance.attach_eni
_end = NatGatewayBackend.delete_nat_gateway
_make_image = AmiBackend.create_image
_make_interface = NetworkInterfaceBackend.create_network_interface
_take_role = IAMBackend.remove_role_from_instance_profile
_remove_group, _remove_subnet = SecurityGroupBackend._delete_security_group, SubnetBackend.delete_subnet


def _file_system(self: fsx.FileSystem) -> dict[str, Any]:
    """Add the lifecycle state, and what follows from the subnet."""
    described: dict[str, Any] = _describe_file_system(self)
    described["Lifecycle"] = self.__dict__.get(FSX_STATE, "AVAILABLE")
    described["CreationTime"] = self.__dict__.setdefault("muster_created", time.time())
    subnets = ec2_backends[self.backend.account_id][self.backend.region_name].subnets
    vpcs = [zone[subnet].vpc_id for subnet in self.subnet_ids or () for zone in subnets.values() if subnet in zone]
    described["VpcId"] = vpcs[0] if vpcs else ""
    described.pop("SecurityGroupIds", None)
    lustre = dict(described.get("LustreConfiguration") or {})
    described["LustreConfiguration"] = {"MountName": self.file_system_id[3:11], **lustre}
    return described


def _permission(self: FakeBucket, action: str, resource: str) -> Any:
    """Ignore statements with conditions: moto does not evaluate them and would always deny access without TLS."""
    policy = json.loads(self.policy.decode()) if self.policy else {"Statement": []}
    unconditional = [statement for statement in policy["Statement"] if "Condition" not in statement]
    return IAMPolicy(json.dumps({**policy, "Statement": unconditional})).is_action_permitted(action, resource)


def _version(self: Any, template: Any, number: int, data: dict[str, Any], description: str) -> None:
    """Remove the tags of the template itself: they do not apply to what is launched from it."""
    launch_tags = [
        specification
        for specification in data.get("TagSpecifications", [])
        if specification.get("ResourceType") != "launch-template"
    ]
    _make_version(self, template, number, {**data, "TagSpecifications": launch_tags}, description)


def _disk(self: Instance, size: int, device_path: str, *args: Any, **kwargs: Any) -> None:
    """Let a disk of the template replace the disk of the image, instead of adding a second one."""
    if device_path in self.block_device_mapping:
        default = self.block_device_mapping[device_path].volume_id
        self.ec2_backend.detach_volume(default, self.id, device_path)
        self.ec2_backend.delete_volume(default)
    _add_disk(self, size, device_path, *args, **kwargs)


def _interface(self: Instance, eni: Any, device_index: int) -> str:
    """Use the next free index: moto has one network card, so first interfaces of several cards would collide."""
    is_taken = device_index in self.nics
    return str(_attach(self, eni, max(self.nics) + 1 if is_taken else device_index))


def _create_interface(
    self: NetworkInterfaceBackend,
    subnet: Any,
    private_ip_address: Any,
    private_ip_addresses: Any = None,
    *args: Any,
    **kwargs: Any,
) -> NetworkInterface:
    """Choose an address that is free: moto chooses any of the subnet, even one in use, and gives it to others too."""
    if not private_ip_address and not private_ip_addresses:
        holder = self.get_subnet(subnet) if isinstance(subnet, str) else subnet
        private_ip_address = holder.get_available_subnet_ip(None)
    return _make_interface(self, subnet, private_ip_address, private_ip_addresses, *args, **kwargs)


def _remove_role(self: IAMBackend, profile_name: str, role_name: str) -> None:
    """Refuse to remove a role that the profile does not have as AWS does; moto fails with a server error."""
    if self.get_role(role_name) not in self.get_instance_profile(profile_name).roles:
        raise NotFoundException(f"Role {role_name} is not in instance profile {profile_name}")
    _take_role(self, profile_name, role_name)


def _end_nat(self: NatGatewayBackend, nat_gateway_id: str) -> NatGateway:
    """Delete the gateway's interface too, and release its address."""
    gone = _end(self, nat_gateway_id)
    backend = gone.ec2_backend
    for address in backend.describe_addresses():
        if address.eni is gone._eni:
            backend.disassociate_address(association_id=address.association_id)
    backend.enis.pop(gone._eni.id, None)
    return gone


def _create_image(
    self: AmiBackend, instance_id: str, name: str, description: str, tag_specifications: list[dict[str, Any]]
) -> Ami:
    """Tag the snapshot too, which moto refuses."""
    tags = {specification["ResourceType"]: specification["Tags"] for specification in tag_specifications}
    images = [{"ResourceType": "image", "Tags": tags.get("image", [])}]
    image = _make_image(self, instance_id, name, description, images)
    for tag in tags.get("snapshot", []):
        image.ebs_snapshot.add_tag(tag["Key"], tag["Value"])
    return image


def _delete_group(self: SecurityGroupBackend, vpc_id: str | None, group_id: str) -> None:
    """Refuse as AWS does while a rule of another group refers to the group, or a mount target uses it."""
    others = (group for groups in self.groups.values() for id_, group in groups.items() if id_ != group_id)
    rules = (rule for group in others for rule in (*group.ingress_rules, *group.egress_rules))
    is_referred_to = any((rule.referenced_group_info or {}).get("GroupId") == group_id for rule in rules)
    if is_referred_to or any(group_id in (target.security_groups or ()) for target in _list_mount_targets(self)):
        raise DependencyViolationError(f"resource {group_id} has a dependent object")
    _remove_group(self, vpc_id, group_id)


def _delete_subnet(self: SubnetBackend, subnet_id: str) -> Any:
    """Refuse as AWS does while a mount target has its interface there."""
    if any(target.subnet_id == subnet_id for target in _list_mount_targets(self)):
        raise DependencyViolationError(f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
    return _remove_subnet(self, subnet_id)


def _list_mount_targets(backend: Any) -> list[MountTarget]:
    return list(efs_backends[backend.account_id][backend.region_name].mount_targets_by_id.values())


def publish_image(path: str, region: str = REGION) -> str:
    """Publish an image under a parameter of AWS, whose API accepts no names that begin with `aws`; return its id.

    Images with and without a GPU driver are different ones.
    """
    amis = ec2_backends[ACCOUNT][region].amis.values()
    images = [ami.id for ami in amis if ami.platform != "windows" and ami.root_device_name == "/dev/sda1"]
    image: str = images["deeplearning" in path]
    parameter = Parameter(
        account_id=ACCOUNT,
        name=path,
        value=image,
        parameter_type="String",
        description=None,
        allowed_pattern=None,
        keyid=None,
        last_modified_date=datetime.now(UTC),
        version=1,
        data_type="aws:ec2:image",
    )
    ssm_backends[ACCOUNT][region]._parameters[path].append(parameter)
    return image


def update_file_system(self: FSxResponse) -> str:
    """Change the size of a Lustre filesystem."""
    sent = json.loads(self.body)
    system = self.fsx_backend.file_systems.get(sent["FileSystemId"])
    if system is None:
        raise JsonRESTError("FileSystemNotFound", f"File system '{sent['FileSystemId']}' does not exist.")
    if "StorageCapacity" in sent:
        system.storage_capacity = sent["StorageCapacity"]
    return json.dumps({"FileSystem": system.to_dict()})


def put_backup_policy(self: EFSResponse) -> str:
    """Switch the automatic backups of an EFS filesystem on or off."""
    sent = json.loads(self.body)["BackupPolicy"]
    id_ = self.path.split("/")[-2]
    self.efs_backend.file_systems_by_id[id_]._backup = sent["Status"] == "ENABLED"
    return json.dumps({"BackupPolicy": sent})


def create_association(self: FSxResponse) -> str:
    """Link a Lustre filesystem to a bucket."""
    sent = json.loads(self.body)
    if sent["FileSystemId"] not in self.fsx_backend.file_systems:
        raise JsonRESTError("FileSystemNotFound", f"File system '{sent['FileSystemId']}' does not exist.")
    id_ = f"dra-{uuid.uuid4().hex[:17]}"
    _associations(self)[id_] = {**sent, "AssociationId": id_, "Lifecycle": "AVAILABLE"}
    return json.dumps({"Association": _associations(self)[id_]})


def describe_associations(self: FSxResponse) -> str:
    """Return the links with the given ids, or all."""
    ids = json.loads(self.body).get("AssociationIds") or list(_associations(self))
    return json.dumps({"Associations": [_association(self, id_) for id_ in ids]})


def delete_association(self: FSxResponse) -> str:
    """Remove a link."""
    id_ = json.loads(self.body)["AssociationId"]
    _association(self, id_)
    del _associations(self)[id_]
    return json.dumps({"AssociationId": id_, "Lifecycle": "DELETING"})


def create_budget_action(self: BudgetsResponse) -> str:
    """Add an action to a budget."""
    sent = json.loads(self.body)
    id_ = str(uuid.uuid4())
    _actions(self)[id_] = {**sent, "ActionId": id_, "Status": "STANDBY"}
    return json.dumps({"AccountId": sent["AccountId"], "BudgetName": sent["BudgetName"], "ActionId": id_})


def describe_budget_action(self: BudgetsResponse) -> str:
    """Return an action of a budget."""
    sent = json.loads(self.body)
    names = {"AccountId": sent["AccountId"], "BudgetName": sent["BudgetName"]}
    return json.dumps({**names, "Action": _action(self, sent["ActionId"])})


def delete_budget_action(self: BudgetsResponse) -> str:
    """Remove an action from a budget."""
    sent = json.loads(self.body)
    gone = _action(self, sent["ActionId"])
    del _actions(self)[sent["ActionId"]]
    return json.dumps({"AccountId": sent["AccountId"], "BudgetName": sent["BudgetName"], "Action": gone})


def update_budget(self: BudgetsResponse) -> str:
    """Change a budget."""
    sent = json.loads(self.body)
    self.backend.budgets[sent["AccountId"]][sent["NewBudget"]["BudgetName"]].budget.update(sent["NewBudget"])
    return "{}"


def _associations(response: FSxResponse) -> Records:
    stored: Records = response.fsx_backend.__dict__.setdefault("muster_associations", {})
    return stored


def _association(response: FSxResponse, id_: str) -> dict[str, Any]:
    if id_ not in _associations(response):
        raise JsonRESTError("DataRepositoryAssociationNotFound", f"no association {id_}")
    return _associations(response)[id_]


def _actions(response: BudgetsResponse) -> Records:
    stored: Records = response.backend.__dict__.setdefault("muster_actions", {})
    return stored


def _action(response: BudgetsResponse, id_: str) -> dict[str, Any]:
    if id_ not in _actions(response):
        raise JsonRESTError("NotFoundException", f"no action {id_}")
    return _actions(response)[id_]
