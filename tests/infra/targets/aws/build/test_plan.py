"""The plan of a cluster on AWS: subnets, launch options, storage, policies, launch templates and images."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import ClusterSpec, Storage
from infra.targets.aws.launcher.fleet import Interface
from infra.targets.aws.plan import capacity, iam, images, launch_template, network, storage
from infra.targets.aws.plan.policy import Scope, Statement
from infra.targets.aws.spec import aws_section
from infra.targets.registry import load_spec as load
from infra.targets.registry import read_spec as read
from policy.resource_rules import TEMPLATE
from tests.infra.targets.aws.build.capture import ROOT, STACKS, capture, of_type
from tests.infra.targets.aws.build.test_order import NODES

SCOPE = Scope("aws", "us-east-1", "1", "demo", "arn:aws:s3:::b", "arn:aws:kms:us-east-1:1:key/k", zone_id="Z1")
ROLES = (iam.controller, iam.login, iam.compute, iam.budget)


def spec(**more: Any) -> ClusterSpec:
    group = {"instance_type": "g6.8xlarge", "count": 2, "fabric": "efa"}
    written = {"name": "demo", "target": "aws", "aws": {"region": "us-east-1"}, "groups": {"gpu": group}}
    return load({**written, "storage": {"shared": {"kind": "efs"}}, **more})


@given(prefix=st.integers(16, 24), count=st.integers(1, 6))
def test_subnets_are_inside_the_range_and_do_not_overlap(prefix: int, count: int) -> None:
    zones = [f"us-east-1{letter}" for letter in "abcdef"[:count]]
    subnets = network.subnets(spec(aws={"region": "us-east-1", "zones": zones}, network={"cidr": f"10.0.0.0/{prefix}"}))
    ranges = [IPv4Network(item.cidr) for item in subnets]
    assert all(item.subnet_of(IPv4Network(f"10.0.0.0/{prefix}")) for item in ranges)
    assert not any(item.overlaps(two) for number, item in enumerate(ranges) for two in ranges[:number])
    assert [item.zone for item in subnets if not item.public] == zones
    assert [(item.zone, item.cidr.rpartition("/")[2]) for item in subnets if item.public] == [(zones[0], "28")]
    private = sum(IPv4Network(item.cidr).num_addresses for item in subnets if not item.public)
    assert private >= 2 ** (32 - prefix) / 4


def test_a_range_that_is_too_small_is_an_error_with_the_fix() -> None:
    with pytest.raises(network.NoRoom, match=r"10.0.0.0/28 cannot hold .* Fix: write a range of at least /27"):
        network.subnets(spec(network={"cidr": "10.0.0.0/28"}))


def test_without_zones_aws_chooses_one() -> None:
    assert network.zones(spec()) == (network.AUTO,)
    named = spec(groups={"gpu": {"instance_type": "g6.8xlarge", "count": 1, "capacity": {"zones": ["us-east-1c"]}}})
    assert network.zones(named) == ("us-east-1c",)


def test_every_zone_is_tried_before_the_next_purchase_option() -> None:
    capacity_fields = {"kind": "spot", "fallback": ["on-demand"], "zones": ["us-east-1b", "us-east-1a"]}
    group = {"instance_type": "g6.8xlarge", "count": 2, "capacity": capacity_fields}
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
    described = spec(aws={"region": "us-east-1", "zones": zones}, groups={"gpu": group})
    launches = capacity.planned_launches(described, described.groups["gpu"])
    assert [(planned.purchase, planned.place.zone) for planned in launches] == [
        ("spot", "us-east-1b"),
        ("spot", "us-east-1a"),
        ("on-demand", "us-east-1b"),
        ("on-demand", "us-east-1a"),
    ]


def test_the_zones_of_a_group_keep_its_types_in_order() -> None:
    capacity_fields = {"fallback_types": ["g6.16xlarge"], "zones": ["us-east-1b", "us-east-1a"]}
    group = {"instance_type": "g6.8xlarge", "count": 2, "fabric": "efa", "capacity": capacity_fields}
    described = spec(aws={"region": "us-east-1", "zones": ["us-east-1a", "us-east-1b"]}, groups={"gpu": group})
    launches = capacity.planned_launches(described, described.groups["gpu"])
    resources = [
        {"launch_template_id": "lt-1", "launch_template_version": "1", "subnet_id": "s", "zone": launch.place.zone}
        for launch in launches
    ]
    planned_group = capacity.fleet_group("gpu", described.groups["gpu"], launches, resources, "sg-1")
    assert [(option.instance_type, option.zone) for option in planned_group.options] == [
        ("g6.8xlarge", "us-east-1b"),
        ("g6.8xlarge", "us-east-1a"),
        ("g6.16xlarge", "us-east-1b"),
        ("g6.16xlarge", "us-east-1a"),
    ]


def test_subnets_in_other_zones_are_left_out() -> None:
    ids = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
    group = {"instance_type": "g6.8xlarge", "count": 2, "capacity": {"zones": ["us-east-1b"]}}
    described = spec(network={"vpc_id": "vpc-0123456789abcdef0", "subnet_ids": ids}, groups={"gpu": group})
    launches = capacity.planned_launches(described, described.groups["gpu"])
    assert [planned.place.label for planned in launches] == ids
    template = {"launch_template_id": "lt-1", "launch_template_version": "1"}
    results = [
        {**template, "subnet_id": ids[0], "zone": "us-east-1a"},
        {**template, "subnet_id": ids[1], "zone": "us-east-1b"},
    ]
    planned_group = capacity.fleet_group("gpu", described.groups["gpu"], launches, results, "sg-1")
    assert [item.subnet_id for item in planned_group.options] == [ids[1]]
    assert (planned_group.interfaces, planned_group.security_groups) == ((Interface(0, 0, "interface"),), ("sg-1",))
    nowhere = [{**item, "zone": "us-east-1a"} for item in results]
    with pytest.raises(ValueError, match="no subnet is in us-east-1b; allowed: the zones of the subnets, us-east-1a"):
        capacity.fleet_group("gpu", described.groups["gpu"], launches, nowhere, "sg-1")


@pytest.mark.parametrize(
    ("storage_", "message"),
    [
        (Storage(kind="fsx-lustre", throughput=300), "throughput: 300 is not sold; allowed: 125, 250, 500, 1000"),
        (Storage(kind="fsx-lustre", size_gb=3600), "size_gb: 3600 is not sold; allowed: 1200, or a multiple of 2400"),
        (
            Storage(kind="fsx-lustre", size_gb=4800, efa=True),
            "4800 is too small for EFA at 250; allowed: 19200 or more",
        ),
    ],
)
def test_lustre_sizes_that_aws_does_not_sell_are_errors(storage_: Storage, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        storage.lustre(storage_)


@pytest.mark.parametrize(
    ("storage_", "size"),
    [
        (Storage(kind="fsx-lustre"), 1200),
        (Storage(kind="fsx-lustre", size_gb=7200), 7200),
        (Storage(kind="fsx-lustre", efa=True, throughput=1000), 4800),
    ],
)
def test_default_and_given_lustre_sizes(storage_: Storage, size: int) -> None:
    described = storage.lustre(storage_).file_system
    assert (described["storage_capacity"], described["deployment_type"]) == (size, "PERSISTENT_2")
    assert described["metadata_configuration"] == {"mode": "AUTOMATIC"}


def test_a_bucket_is_mounted_under_its_name() -> None:
    link = storage.lustre(Storage(kind="fsx-lustre", s3="s3://my-data/corpus")).link
    assert link is not None
    assert (link["data_repository_path"], link["file_system_path"]) == ("s3://my-data/corpus", "/my-data")


def test_a_file_deleted_on_lustre_stays_in_the_bucket() -> None:
    link = storage.lustre(Storage(kind="fsx-lustre", s3="s3://my-data/corpus")).link
    assert link is not None
    assert "DELETED" not in link["s3"]["auto_export_policy"]["events"]
    assert "DELETED" in link["s3"]["auto_import_policy"]["events"]


def test_a_statement_for_all_resources_needs_a_reason() -> None:
    with pytest.raises(ValueError, match=r"Look: resource \* needs a reason"):
        Statement("Look", ("ec2:DescribeInstances",), ("*",))


@pytest.mark.parametrize("role", ROLES)
def test_no_policy_has_a_wildcard_without_a_reason(role: Any) -> None:
    for item in role(SCOPE):
        assert not any("*" in action for action in item.actions)
        whole_kind = any(resource.endswith(":instance/*") for resource in item.resources) and not item.conditions
        assert ("*" in item.resources or whole_kind) == bool(item.reason), item.sid


def test_a_pool_of_reservations_is_allowed_with_its_reason() -> None:
    pool = Scope(**{**vars(SCOPE), "reservations": ["arn:aws:resource-groups:us-east-1:1:group/pool"]})
    wide = [item for item in iam.controller(pool) if item.sid == "LaunchIntoPool"]
    assert [(item.resources, bool(item.reason)) for item in wide] == [
        (("arn:aws:ec2:us-east-1:1:capacity-reservation/*",), True)
    ]
    single = Scope(**{**vars(SCOPE), "reservations": ["cr-1"]})
    assert [item.sid for item in iam.controller(single) if item.sid == "LaunchIntoPool"] == []


def test_only_the_controller_reads_the_fleet_and_host_keys_and_no_role_the_whole_bucket() -> None:
    read = {role: _objects(role(SCOPE), "s3:GetObject") for role in (iam.controller, iam.login, iam.compute)}
    for_all_roles = {"arn:aws:s3:::b/bundle/*.tar", "arn:aws:s3:::b/packages/*.tar"}
    assert read == {
        iam.controller: for_all_roles | {"arn:aws:s3:::b/fleet.json", "arn:aws:s3:::b/host-keys.json"},
        iam.login: for_all_roles,
        iam.compute: for_all_roles | {"arn:aws:s3:::b/host-keys/${ec2:SourceInstanceARN}"},
    }


def test_the_spot_role_is_created_only_with_spot() -> None:
    with_spot = Scope(**{**vars(SCOPE), "spot": True})
    assert ["FirstSpot" in {item.sid for item in iam.controller(scope)} for scope in (SCOPE, with_spot)] == [
        False,
        True,
    ]


def test_the_controller_has_all_key_permissions_of_encrypted_disks() -> None:
    """See https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html."""
    statements = [item for item in iam.controller(SCOPE) if item.sid.startswith("EncryptDisks")]
    assert {action for item in statements for action in item.actions} == {
        "kms:CreateGrant",
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:GenerateDataKeyWithoutPlaintext",
        "kms:ReEncryptFrom",
        "kms:ReEncryptTo",
    }


def _objects(statements: Iterable[Statement], action: str) -> set[str]:
    return {resource for item in statements if action in item.actions for resource in item.resources}


def machine() -> launch_template.Machine:
    return launch_template.Machine("p5en.48xlarge", "ami-1", "arn:p", "arn:k", "AAAA", {"a": "b"})


@pytest.mark.parametrize(
    ("purchase", "reservation", "market", "target"),
    [
        ("on-demand", None, None, None),
        ("spot", None, "spot", None),
        ("reservation", "cr-1", None, {"capacity_reservation_id": "cr-1"}),
        ("reservation", "arn:pool", None, {"capacity_reservation_resource_group_arn": "arn:pool"}),
        ("block", "cr-2", "capacity-block", {"capacity_reservation_id": "cr-2"}),
    ],
)
def test_purchase_options_of_a_launch_template(
    purchase: Any, reservation: str | None, market: str | None, target: Any
) -> None:
    described = launch_template.arguments(machine(), purchase, reservation)
    assert described.get("instance_market_options", {}).get("market_type") == market
    assert described.get("capacity_reservation_specification", {}).get("capacity_reservation_target") == target


def test_a_template_has_no_interfaces() -> None:
    """A launch names them, with their subnet; AWS does not document how it would merge two lists."""
    described = launch_template.arguments(machine(), "on-demand")
    assert not {"network_interfaces", "vpc_security_group_ids", "security_group_names"} & set(described)


def test_a_group_starts_from_its_own_image() -> None:
    section, own = "ami-0123456789abcdef0", "ami-0123456789abcdef1"
    fields = {"instance_type": "p5.48xlarge", "count": 1}
    groups = {"a": fields, "b": {**fields, "image": own}}
    resources = capture(spec(groups=groups, aws={"region": "us-east-1", "ami": section}), "s")
    templates = {template.name: template.props["imageId"] for template in of_type(resources, TEMPLATE)}
    assert templates == {"a-on-demand": section, "b-on-demand": own}
    machines = {nodes.props["group"]: nodes.props["machine"] for nodes in of_type(resources, NODES)}
    assert own in machines["b"]
    assert own not in machines["a"]


def test_no_image_is_looked_up_for_a_group_with_its_own() -> None:
    fields = {"instance_type": "p5.48xlarge", "count": 1}
    own = {**fields, "image": "ami-0123456789abcdef0"}
    assert set(images.parameters(spec(groups={"a": own}))) == {"plain-x86_64"}
    assert set(images.parameters(spec(groups={"a": own, "b": fields}))) == {"plain-x86_64", "gpu-x86_64"}


@pytest.mark.parametrize("stack", STACKS)
def test_images_are_looked_up_only_if_the_spec_names_none(stack: str) -> None:
    described = read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")
    kinds = set(images.parameters(described))
    section = aws_section(described)
    assert section
    named = {"plain-x86_64": section.plain_ami, "gpu-x86_64": section.ami}
    assert kinds == {kind for kind, image in named.items() if not image}
