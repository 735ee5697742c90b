"""Looks up what only AWS knows, once: account, images behind SSM parameters, a zone, existing subnets and filesystems.

The answers stay in the state, so that an image that AWS publishes later does not replace running machines; another `up`
looks up only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pulumi
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.resources.error import ResourceError
from infra.resources.properties import Properties
from infra.targets.aws.client import create_client
from infra.targets.aws.offerings import list_offered_zones
from infra.targets.aws.plan import images


@dataclass(frozen=True)
class ResolvedArgs:
    """What to look up."""

    region: str
    parameters: Mapping[str, str]
    """SSM parameters that hold an image id, or image ids that the pre-flight chose instead, by kind of image."""
    instance_types: Sequence[str]
    """Types that the zone has to offer; empty if the spec names its zones."""
    vpc_id: str | None
    subnet_ids: Sequence[str]
    filesystem_ids: Sequence[str]


class ResolvedProvider(ResourceProvider):
    """Pulumi provider of the lookup; its inputs are ResolvedArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        identity = create_client("sts", props["region"]).get_caller_identity()
        account = {"account": identity["Account"], "partition": identity["Arn"].split(":")[1]}
        return CreateResult(f"resolved-{props['region']}", props | account | _look_up(props, {}))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = ["region"] if olds["region"] != news["region"] else []
        return DiffResult(changes=bool(replaces or _missing(olds, news)), replaces=replaces)

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        account = {key: olds[key] for key in ("account", "partition")}
        return UpdateResult(news | account | _look_up(news, olds))


class Resolved(Resource, module="muster", name="AwsResolved"):
    """What AWS knows about the cluster's account, images, network and filesystems."""

    account: pulumi.Output[str]
    partition: pulumi.Output[str]
    images: pulumi.Output[dict[str, str]]
    zone: pulumi.Output[str]
    """The zone that offers every instance type; empty if the spec names zones."""
    subnet_zones: pulumi.Output[dict[str, str]]
    vpc_cidr: pulumi.Output[str]
    """Address range of an existing VPC."""
    filesystems: pulumi.Output[dict[str, dict[str, str]]]
    """Existing filesystems by id: kind, host and export of each."""

    def __init__(self, name: str, args: ResolvedArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("account", "partition", "images", "zone", "subnet_zones", "vpc_cidr", "filesystems"))
        super().__init__(ResolvedProvider(), name, {**vars(args), **outputs}, opts)


def _missing(olds: Properties, news: Properties) -> bool:
    """Return whether the inputs name something that was not looked up yet."""
    new_images = set(news["parameters"]) - set(olds.get("images") or {})
    new_subnets = set(news["subnet_ids"]) - set(olds.get("subnet_zones") or {})
    new_filesystems = set(news["filesystem_ids"]) - set(olds.get("filesystems") or {})
    new_types = set(news["instance_types"]) - set(olds.get("instance_types") or ())
    return bool(new_images or new_subnets or new_filesystems or new_types)


def _look_up(props: Properties, olds: Properties) -> Properties:
    region = props["region"]
    return {
        "images": _images(region, props["parameters"], olds.get("images") or {}),
        "zone": _zone(region, props["instance_types"], olds.get("zone") or ""),
        "subnet_zones": _subnet_zones(region, props["subnet_ids"], olds.get("subnet_zones") or {}),
        "vpc_cidr": olds.get("vpc_cidr") or _vpc_cidr(region, props.get("vpc_id")),
        "filesystems": _filesystems(region, props["filesystem_ids"], olds.get("filesystems") or {}),
    }


def _images(region: str, parameters: Mapping[str, str], olds: Mapping[str, str]) -> dict[str, str]:
    ssm = create_client("ssm", region)
    return {kind: olds.get(kind) or _image(ssm, region, kind, path) for kind, path in parameters.items()}


def _image(ssm: object, region: str, kind: str, path: str) -> str:
    if path.startswith("ami-"):
        return path
    try:
        image: str = ssm.get_parameter(Name=path)["Parameter"]["Value"]  # type: ignore[attr-defined]
    except ClientError as error:
        field = images.FIELDS[kind.partition("-")[0]]
        what = f"{region} has no image under {path} ({error.response['Error']['Code']})"
        raise ResourceError(f"aws.{field}", what, f"set the image with `{field}: ami-...`") from None
    return image


def _zone(region: str, instance_types: Sequence[str], chosen: str) -> str:
    if not instance_types:
        return ""
    offered = list_offered_zones(create_client("ec2", region), sorted(set(instance_types)))
    common = sorted(set.intersection(*map(set, offered.values())))
    if chosen and chosen not in common:
        missing = ", ".join(name for name, zones in offered.items() if chosen not in zones)
        what = f"{chosen}, the zone of this cluster, does not offer {missing}"
        raise ResourceError("groups", what, "choose an instance type that this zone offers")
    if not common:
        offers = "; ".join(f"{name}: {', '.join(zones) or 'no zone'}" for name, zones in offered.items())
        what = f"no zone of {region} offers all instance types ({offers})"
        raise ResourceError("aws.zones", what, "set several zones, another region, or other instance types")
    return chosen or common[0]


def _subnet_zones(region: str, subnet_ids: Sequence[str], olds: Mapping[str, str]) -> dict[str, str]:
    new = [subnet for subnet in subnet_ids if subnet not in olds]
    if not new:
        return {subnet: olds[subnet] for subnet in subnet_ids}
    with _existing("network.subnet_ids", "private subnets of network.vpc_id, in this region and account"):
        described = create_client("ec2", region).describe_subnets(SubnetIds=new)["Subnets"]
    zones = {**olds, **{subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in described}}
    _check_one_per_zone({subnet: zones[subnet] for subnet in subnet_ids})
    return {subnet: zones[subnet] for subnet in subnet_ids}


def _check_one_per_zone(zones: Mapping[str, str]) -> None:
    """Reject two subnets in a zone: EFS has one address per zone, and a placement group needs one subnet."""
    for zone in dict.fromkeys(zones.values()):
        subnets = [subnet for subnet, subnet_zone in zones.items() if subnet_zone == zone]
        if len(subnets) > 1:
            what = f"{', '.join(subnets)} are all in {zone}; allowed: one subnet per zone"
            raise ResourceError("network.subnet_ids", what, f"keep one of them, for example {subnets[0]}")


def _vpc_cidr(region: str, vpc_id: str | None) -> str:
    if not vpc_id:
        return ""
    with _existing("network.vpc_id", "a VPC of this region and account"):
        cidr: str = create_client("ec2", region).describe_vpcs(VpcIds=[vpc_id])["Vpcs"][0]["CidrBlock"]
    return cidr


@contextmanager
def _existing(where: str, allowed: str) -> Iterator[None]:
    """Turn an error of AWS into a ResourceError of the field `where`."""
    try:
        yield
    except ClientError as error:
        details = error.response["Error"]
        raise ResourceError(where, f"{details.get('Message', '')} ({details['Code']})", f"write {allowed}") from None


def _filesystems(region: str, ids: Sequence[str], olds: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {id_: olds.get(id_) or _filesystem(region, id_) for id_ in ids}


def _filesystem(region: str, id_: str) -> dict[str, str]:
    """Return what a filesystem is; its id does not show whether it belongs to FSx or EFS."""
    if lustre := _lustre(region, id_):
        return lustre
    try:
        create_client("efs", region).describe_file_systems(FileSystemId=id_)
    except ClientError as error:
        what = f"{region} has neither an FSx nor an EFS filesystem {id_} ({error.response['Error']['Code']})"
        raise ResourceError("storage", what, "write the id of a filesystem of this region and account") from None
    return {"kind": "efs", "host": f"{id_}.efs.{region}.amazonaws.com", "export": "/"}


def _lustre(region: str, id_: str) -> dict[str, str] | None:
    try:
        described = create_client("fsx", region).describe_file_systems(FileSystemIds=[id_])["FileSystems"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "FileSystemNotFound":
            raise
        return None
    if not described:
        return None
    filesystem = described[0]
    kind = filesystem["FileSystemType"]
    if kind != "LUSTRE":
        what = f"{id_} is an FSx filesystem of type {kind}; allowed: LUSTRE"
        raise ResourceError("storage", what, "write the id of an FSx for Lustre or EFS filesystem")
    return {
        "kind": "lustre",
        "host": filesystem["DNSName"],
        "export": filesystem["LustreConfiguration"]["MountName"],
    }
