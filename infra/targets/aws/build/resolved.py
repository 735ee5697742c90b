"""What only AWS knows, asked once and kept: account, images behind SSM parameters, a zone, what exists already.

An image that AWS publishes next month must not replace machines that run; a later `up` asks only for what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pulumi
from botocore.exceptions import ClientError
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.resources.problem import Problem
from infra.resources.properties import Properties
from infra.targets.aws.client import client
from infra.targets.aws.offerings import sold
from infra.targets.aws.plan import images


@dataclass(frozen=True)
class ResolvedArgs:
    region: str
    parameters: Mapping[str, str]
    """By kind of image: the SSM parameter that names it."""
    instance_types: Sequence[str]
    """What the zone has to offer; none where the spec names its zones."""
    vpc_id: str | None
    subnet_ids: Sequence[str]
    filesystem_ids: Sequence[str]


class ResolvedProvider(ResourceProvider):
    """Inputs: ResolvedArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        identity = client("sts", props["region"]).get_caller_identity()
        known = {"account": identity["Account"], "partition": identity["Arn"].split(":")[1]}
        return CreateResult(f"resolved-{props['region']}", props | known | _ask(props, {}))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = ["region"] if olds["region"] != news["region"] else []
        return DiffResult(changes=bool(replaces or _missing(olds, news)), replaces=replaces)

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        known = {key: olds[key] for key in ("account", "partition")}
        return UpdateResult(news | known | _ask(news, olds))


class Resolved(Resource, module="muster", name="AwsResolved"):
    account: pulumi.Output[str]
    partition: pulumi.Output[str]
    images: pulumi.Output[dict[str, str]]
    zone: pulumi.Output[str]
    """The one that offers every instance type; empty where the spec names zones."""
    subnet_zones: pulumi.Output[dict[str, str]]
    vpc_cidr: pulumi.Output[str]
    """Of a VPC that exists already."""
    filesystems: pulumi.Output[dict[str, dict[str, str]]]
    """Those that exist already, by id: kind, host and export of each."""

    def __init__(self, name: str, args: ResolvedArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("account", "partition", "images", "zone", "subnet_zones", "vpc_cidr", "filesystems"))
        super().__init__(ResolvedProvider(), name, {**vars(args), **outputs}, opts)


def _missing(olds: Properties, news: Properties) -> bool:
    """A parameter under a known name is not asked again, nor a zone that is chosen."""
    new_images = set(news["parameters"]) - set(olds.get("images") or {})
    new_subnets = set(news["subnet_ids"]) - set(olds.get("subnet_zones") or {})
    new_filesystems = set(news["filesystem_ids"]) - set(olds.get("filesystems") or {})
    new_types = set(news["instance_types"]) - set(olds.get("instance_types") or ())
    return bool(new_images or new_subnets or new_filesystems or new_types)


def _ask(props: Properties, known: Properties) -> Properties:
    region = props["region"]
    return {
        "images": _images(region, props["parameters"], known.get("images") or {}),
        "zone": _zone(region, props["instance_types"], known.get("zone") or ""),
        "subnet_zones": _subnet_zones(region, props["subnet_ids"], known.get("subnet_zones") or {}),
        "vpc_cidr": known.get("vpc_cidr") or _vpc_cidr(region, props.get("vpc_id")),
        "filesystems": _filesystems(region, props["filesystem_ids"], known.get("filesystems") or {}),
    }


def _images(region: str, parameters: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    ssm = client("ssm", region)
    return {kind: known.get(kind) or _image(ssm, region, kind, path) for kind, path in parameters.items()}


def _image(ssm: object, region: str, kind: str, path: str) -> str:
    try:
        found: str = ssm.get_parameter(Name=path)["Parameter"]["Value"]  # type: ignore[attr-defined]
    except ClientError as error:
        field = images.FIELDS[kind.partition("-")[0]]
        what = f"{region} has no image under {path} ({error.response['Error']['Code']})"
        raise Problem(f"aws.{field}", what, f"name an image of your own with `{field}: ami-...`") from None
    return found


def _zone(region: str, instance_types: Sequence[str], known: str) -> str:
    if not instance_types:
        return ""
    offered = sold(client("ec2", region), sorted(set(instance_types)))
    common = sorted(set.intersection(*map(set, offered.values())))
    if known and known not in common:
        missing = ", ".join(name for name, zones in offered.items() if known not in zones)
        raise Problem("groups", f"{known}, where this cluster is, has no {missing}", "choose a type that is sold there")
    if not common:
        told = "; ".join(f"{name}: {', '.join(zones) or 'nowhere'}" for name, zones in offered.items())
        what = f"no zone of {region} offers all of them ({told})"
        raise Problem("aws.zones", what, "name several zones, one region further, or other instance types")
    return known or common[0]


def _subnet_zones(region: str, subnet_ids: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    asked = [subnet for subnet in subnet_ids if subnet not in known]
    if not asked:
        return {subnet: known[subnet] for subnet in subnet_ids}
    with _existing("network.subnet_ids", "private subnets of network.vpc_id, in this region and account"):
        found = client("ec2", region).describe_subnets(SubnetIds=asked)["Subnets"]
    zones = {**known, **{subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in found}}
    _one_each({subnet: zones[subnet] for subnet in subnet_ids})
    return {subnet: zones[subnet] for subnet in subnet_ids}


def _one_each(zones: Mapping[str, str]) -> None:
    """EFS has one address in a zone, and machines close together are in one subnet."""
    for zone in dict.fromkeys(zones.values()):
        there = [subnet for subnet, of in zones.items() if of == zone]
        if len(there) > 1:
            what = f"{', '.join(there)} are all in {zone}; allowed: one subnet per zone"
            raise Problem("network.subnet_ids", what, f"keep one of them, for example {there[0]}")


def _vpc_cidr(region: str, vpc_id: str | None) -> str:
    if not vpc_id:
        return ""
    with _existing("network.vpc_id", "a VPC of this region and account"):
        cidr: str = client("ec2", region).describe_vpcs(VpcIds=[vpc_id])["Vpcs"][0]["CidrBlock"]
    return cidr


@contextmanager
def _existing(where: str, allowed: str) -> Iterator[None]:
    """A refusal of AWS as one message."""
    try:
        yield
    except ClientError as error:
        said = error.response["Error"]
        raise Problem(where, f"{said.get('Message', '')} ({said['Code']})", f"write {allowed}") from None


def _filesystems(region: str, ids: Sequence[str], known: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {one: known.get(one) or _filesystem(region, one) for one in ids}


def _filesystem(region: str, id_: str) -> dict[str, str]:
    """An id does not say whether it is of FSx or of EFS."""
    found = _lustre(region, id_)
    if found:
        return found
    try:
        client("efs", region).describe_file_systems(FileSystemId=id_)
    except ClientError as error:
        what = f"{region} has neither an FSx nor an EFS filesystem {id_} ({error.response['Error']['Code']})"
        raise Problem("storage", what, "write the id of one that exists in this region and account") from None
    return {"kind": "efs", "host": f"{id_}.efs.{region}.amazonaws.com", "export": "/"}


def _lustre(region: str, id_: str) -> dict[str, str] | None:
    try:
        found = client("fsx", region).describe_file_systems(FileSystemIds=[id_])["FileSystems"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "FileSystemNotFound":
            raise
        return None
    if not found:
        return None
    kind = found[0]["FileSystemType"]
    if kind != "LUSTRE":
        raise Problem("storage", f"{id_} is an FSx filesystem of type {kind}", "name one of Lustre, or of EFS")
    return {"kind": "lustre", "host": found[0]["DNSName"], "export": found[0]["LustreConfiguration"]["MountName"]}
