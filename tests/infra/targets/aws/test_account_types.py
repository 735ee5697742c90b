"""Instance types outside the catalog: AWS is asked once, and rules, plan and cost then accept them with a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES, InstanceType, InstanceTypeBackend

from cluster.catalog import instances
from cluster.catalog.described import spread_efa
from cluster.catalog.instances import UnknownInstanceType, instance
from cluster.spec import ClusterSpec
from infra.targets.aws.account_types import FILE, list_missing, merge_types
from infra.targets.aws.target import AwsTarget
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import REGION, Moto

# moto describes it as AWS does; the catalog does not have its family.
NEW = "g4dn.metal"
GB300 = "p6e-gb300.36xlarge"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(instances, "_ADDED", {})
    return tmp_path


def new_spec(name: str = NEW) -> ClusterSpec:
    return spec(groups=group(instance_type=name, fabric="tcp"), aws={"region": REGION})


def codes(described: ClusterSpec) -> dict[str, str]:
    return {issue.code: issue.level for issue in AwsTarget().validate(described)}


def test_a_new_type_is_looked_up_once_and_accepted_with_a_warning(aws: Moto, home: Path) -> None:
    target = AwsTarget()
    assert codes(new_spec())["unknown_instance_type"] == "error"
    target.look_up(new_spec())
    levels = codes(new_spec())
    assert levels["type_not_reviewed"] == "warning"
    assert "error" not in levels.values(), levels
    (nodes,) = target.plan(new_spec()).sets
    assert (nodes.instance_type, nodes.gpus.count, nodes.sockets, nodes.nvlinks) == (NEW, 8, 0, 0)
    assert nodes.gpus.type.isalnum()
    assert nodes.gpus.type == nodes.gpus.type.lower()
    assert any(line.open and line.part == "groups.gpu" for line in target.cost(new_spec()).lines)
    aws.calls.clear()
    target.look_up(new_spec())
    assert "DescribeInstanceTypes" not in aws.count()
    assert set(json.loads((home / FILE).read_text())) == {NEW}


def test_a_plan_in_another_process_has_the_stored_types(
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    AwsTarget().look_up(new_spec())
    monkeypatch.setattr(instances, "_ADDED", {})
    (nodes,) = AwsTarget().plan(new_spec()).sets
    assert nodes.instance_type == NEW


def test_a_look_up_that_fails_is_a_warning_with_the_error(aws: Moto, home: Path) -> None:
    aws.fail("DescribeInstanceTypes", "UnauthorizedOperation")
    (issue,) = AwsTarget().look_up(new_spec())
    assert (issue.level, issue.code, issue.where) == ("warning", "type_not_looked_up", "groups.gpu.instance_type")
    assert issue.message == (
        "'g4dn.metal' could not be looked up in the account (DescribeInstanceTypes: UnauthorizedOperation)"
    )
    assert not (home / FILE).exists()


def test_a_type_that_does_not_exist_stays_an_error(aws: Moto, home: Path) -> None:
    assert AwsTarget().look_up(new_spec("p99.xlarge")) == []
    assert codes(new_spec("p99.xlarge"))["unknown_instance_type"] == "error"
    assert not (home / FILE).exists()


def test_types_of_the_catalog_are_not_looked_up(aws: Moto) -> None:
    aws.calls.clear()
    AwsTarget().look_up(spec())
    assert "DescribeInstanceTypes" not in aws.count()


def test_without_credentials_a_new_type_stays_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    AwsTarget().look_up(new_spec())
    with pytest.raises(UnknownInstanceType):
        instance(NEW)


def test_a_type_is_looked_up_again_for_another_region() -> None:
    stored: dict[str, dict[str, Any]] = {NEW: {"regions": ["us-east-1"]}}
    assert list_missing([NEW, "p5.48xlarge", "", NEW], stored, "us-west-2") == [NEW]
    assert list_missing([NEW], stored, "us-east-1") == []


def test_a_type_that_is_described_in_part_stays_unknown() -> None:
    assert merge_types({}, {"x1.old": {"VCpuInfo": {"DefaultVCpus": 4}}}, "us-east-1") == {}


def test_a_damaged_file_is_ignored(home: Path) -> None:
    (home / FILE).write_text("{")
    assert codes(new_spec())["unknown_instance_type"] == "error"


def test_a_new_type_with_neuron_chips_is_accepted_with_the_warning_of_trainium(aws: Moto) -> None:
    """Trn3 comes this way, as the catalog lacks it; moto describes nothing newer than Trn2."""
    name = "inf2.48xlarge"
    AwsTarget().look_up(new_spec(name))
    levels = codes(new_spec(name))
    assert {levels[code] for code in ("type_not_reviewed", "trainium")} == {"warning"}
    assert "error" not in levels.values(), levels
    assert instance(name).neuron > 0
    (nodes,) = AwsTarget().plan(new_spec(name)).sets
    assert nodes.gpus.count == 0


def describe_gb300() -> dict[str, Any]:
    """Return the answer of DescribeInstanceTypes for P6e-GB300, as far as one was published (NVIDIA/aicr, issue 1256).

    That is the number of network cards and of EFA interfaces. Everything else is that of P6e-GB200.
    """
    cards = [
        {
            "NetworkCardIndex": index,
            "MaximumNetworkInterfaces": 2,
            "PeakBandwidthInGbps": 400.0,
            "InterfaceTypes": ["interface"] if index == 0 else ["interface", "efa", "efa-only"],
        }
        for index in range(9)
    ]
    return {
        "InstanceType": GB300,
        "VCpuInfo": {"DefaultVCpus": 144, "DefaultCores": 144},
        "MemoryInfo": {"SizeInMiB": 983040},
        "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
        "GpuInfo": {"Gpus": [{"Count": 4, "Name": "GB300", "MemoryInfo": {"SizeInMiB": 284672}}]},
        "NetworkInfo": {"NetworkCards": cards, "EfaInfo": {"MaximumEfaInterfaces": 2}},
        "SupportedUsageClasses": ["capacity-block"],
        "PlacementGroupInfo": {"SupportedStrategies": ["partition", "spread"]},
        "AutoRecoverySupported": False,
    }


def ultraserver_spec(count: int = 18) -> ClusterSpec:
    block = {"kind": "block", "reservation": "cr-0123456789abcdef0", "zones": ["us-east-1-dfw-2a"]}
    return spec(
        aws={"region": REGION, "zones": ["us-east-1a", "us-east-1-dfw-2a"]},
        controller={"instance_type": "m7g.xlarge"},
        login={"instance_type": "m7g.large"},
        network={
            "vpc_id": "vpc-0123456789abcdef0",
            "subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        },
        storage={"shared": {"kind": "fsx-lustre"}},
        groups={"gb": {"instance_type": GB300, "count": count, "fabric": "efa", "capacity": block}},
    )


def test_gb300_is_an_ultraserver_as_the_account_describes_it(
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(INSTANCE_TYPES, GB300, describe_gb300())
    monkeypatch.setattr(InstanceTypeBackend, "instance_types", [InstanceType(GB300)])
    target = AwsTarget()
    assert target.look_up(ultraserver_spec()) == []
    (issue,) = target.validate(ultraserver_spec())
    assert (issue.level, issue.code, issue.where) == ("warning", "type_not_reviewed", "groups.gb.instance_type")
    assert "AWS documents neither its network cards nor its UltraServers" in issue.message
    assert issue.fix.startswith("name an Ubuntu image that supports it with `aws.ami`")
    (blades,) = target.plan(ultraserver_spec()).sets
    assert (blades.ultraserver, blades.efa_devices, blades.nvlinks, blades.gpus.type) == (True, 2, 18, "gb300")
    assert [card.index for card in instance(GB300).network_cards if card.efa] == [1, 5]
    assert codes(ultraserver_spec(19))["ultraserver_size"] == "error"


def test_gb300_that_the_account_does_not_describe_stays_an_error(aws: Moto) -> None:
    assert AwsTarget().look_up(ultraserver_spec()) == []
    assert codes(ultraserver_spec())["unknown_instance_type"] == "error"


@pytest.mark.parametrize(
    ("able", "limit", "cards"),
    [([3, 1, 2], 3, [1, 2, 3]), ([1, 2], 4, [1, 2]), (list(range(1, 9)), 2, [1, 5]), ([1, 2, 3], 2, [1, 2])],
)
def test_a_limit_on_efa_interfaces_is_spread_over_the_cards(able: list[int], limit: int, cards: list[int]) -> None:
    assert spread_efa(able, limit) == cards
