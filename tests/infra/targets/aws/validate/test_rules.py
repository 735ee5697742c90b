"""Validators of clusters on AWS: the exact message of each rule; budgets; examples without issues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.spec.issue import SpecError, render
from cluster.spec.stack_file import Loader
from infra.targets.aws.cost import cost
from infra.targets.aws.plan.machines import build_plan
from infra.targets.aws.validate import budget as aws_budget
from infra.targets.aws.validate import machines, registry
from infra.targets.registry import load_spec as load
from infra.targets.registry import read_spec as read
from infra.validate import validate
from infra.validate.partial import validate_readable
from tests.infra.targets.aws.specs import good, group, spec

ROOT = Path(__file__).parents[5]
TABLE = yaml.safe_load(Path(__file__).with_name("test_rules_bad.yaml").read_text())
EXAMPLES = sorted((ROOT / "stacks").glob("Pulumi.aws-*.yaml"))


@pytest.mark.fault(28, place="unit")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["title"])
def test_each_invalid_spec_has_its_messages(row: dict[str, Any]) -> None:
    fields = {**good(), **yaml.load(row["spec"], Loader)}
    issues = validate(load({key: value for key, value in fields.items() if value is not None}))
    assert render(issues) == row["says"].rstrip("\n")
    assert [issue.code for issue in issues] == row["codes"]


def test_every_rule_is_violated_in_the_table() -> None:
    """The rules about budgets have their own tests below; types outside the catalog are in test_account_types."""
    violated: set[object] = {
        aws_budget.check_hourly_budget,
        aws_budget.check_monthly_budget,
        machines.check_type_reviewed,
    }
    for row in TABLE:
        fields = {**good(), **yaml.load(row["spec"], Loader)}
        invalid = load({key: value for key, value in fields.items() if value is not None})
        violated |= {rule for rule in registry.RULES if list(rule(invalid))}
    assert set(registry.RULES) - violated == set()


def test_a_good_spec_has_no_issues() -> None:
    assert validate(spec(), root=ROOT) == []


def test_an_ultraserver_in_a_local_zone_has_no_issues() -> None:
    """As in docs/aws.md: existing subnets, the first of them in a zone of the region, and machines with ARM CPUs."""
    ultraserver = {"kind": "block", "reservation": "cr-0123456789abcdef0", "zones": ["us-east-1-dfw-2a"]}
    valid = spec(
        aws={"region": "us-east-1", "zones": ["us-east-1a", "us-east-1-dfw-2a"]},
        controller={"instance_type": "m7g.xlarge"},
        login={"instance_type": "m7g.large"},
        network={
            "vpc_id": "vpc-0123456789abcdef0",
            "subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        },
        storage={"shared": {"kind": "fsx-lustre"}},
        groups={
            "gb": {"instance_type": "p6e-gb200.36xlarge", "count": 18, "fabric": "efa", "capacity": ultraserver},
        },
    )
    assert render(validate(valid, root=ROOT)) == ""
    (blades,) = build_plan(valid).sets
    assert (blades.ultraserver, blades.efa_devices, blades.nvlinks, blades.gpus.type) == (True, 4, 18, "gb200")
    (line,) = [line for line in cost(valid).lines if line.what == "p6e-gb200.36xlarge, block"]
    assert (line.usd_per_hour, line.note) == (0.0, "the block was paid in advance")


@pytest.mark.parametrize("stack", EXAMPLES, ids=lambda stack: stack.stem)
def test_examples_have_no_issues(stack: Path) -> None:
    assert render(validate(read(stack), root=ROOT)) == ""


def test_the_nccl_version_of_the_lock_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "old.lock").write_text("nvidia-nccl-cu12==2.21.5 ; sys_platform == 'linux' \\\n")
    (tmp_path / "none.lock").write_text("torch==2.15.0\n")
    with_old = {"software": {"training_lock": "old.lock"}}
    assert render(validate(spec(**with_old), root=tmp_path)) == (
        "error    software.training_lock\n"
        "         'old.lock' has NCCL 2.21.5; allowed: 2.24.0 or newer (2.21 to 2.23 ignore errors of the plugin, so "
        "that jobs hang instead of failing)\n"
        "         fix: lock NCCL 2.24.0 or newer, or name another lock file\n"
        "\n"
        "1 error"
    )
    assert validate(spec(software={"training_lock": "none.lock"}), root=tmp_path) == []
    no_gpus = {"cpu": {"instance_type": "m7i.xlarge", "count": 2}}
    assert validate(spec(**with_old, groups=no_gpus), root=tmp_path) == []


@pytest.mark.parametrize("usd", [1.0, 100.0])
def test_the_hourly_price_must_be_within_the_budget(usd: float) -> None:
    elastic = {"gpu": {"instance_type": "p5.48xlarge", "min": 0, "max": 8, "fabric": "efa"}}
    small = spec(groups=elastic, budget={"usd_per_hour": usd})
    price = cost(small).usd_per_hour
    assert render(validate(small)) == (
        "error    budget.usd_per_hour\n"
        f"         {usd:g} is less than the {price:.2f} USD per hour that the cluster costs at most\n"
        "         fix: fewer or smaller nodes, a lower max, or a higher budget; `make cost` shows each part\n"
        "\n"
        "1 error"
    )


def test_the_monthly_minimum_must_be_within_the_budget() -> None:
    small = spec(budget={"usd_per_month": 1000.0, "notify": ["ops@example.com"]})
    (issue,) = validate(small)
    assert (issue.code, issue.where) == ("over_budget", "budget.usd_per_month")
    least = f"{cost(small).usd_per_month_min:,.2f}"
    assert issue.message == f"1000 is less than the {least} USD per month that the cluster costs while idle"


def test_a_sufficient_budget_has_no_issues() -> None:
    enough = cost(spec()).usd_per_hour
    assert validate(spec(budget={"usd_per_hour": enough + 0.01})) == []
    elastic = {"gpu": {"instance_type": "p5.48xlarge", "min": 0, "max": 8, "fabric": "efa"}}
    assert validate(spec(groups=elastic, budget={"usd_per_month": 1000.0, "notify": ["a@example.com"]})) == []


def test_the_gpus_of_the_instance_type_may_be_written_out() -> None:
    assert validate(spec(groups=group(fabric="efa", gpus={"count": 8, "kind": "real", "type": "h100"}))) == []


def test_all_violations_are_reported_together() -> None:
    invalid = spec(
        aws={"region": "us-east-1", "zones": ["us-west-2a"]},
        groups=group(instance_type="g6.xlarge", fabric="efa", capacity={"kind": "block"}),
        storage={"shared": {"kind": "existing"}},
    )
    codes = {issue.code for issue in validate(invalid)}
    assert codes == {"zone_region", "no_efa", "not_sold", "block_without_id", "no_file_system"}


def test_a_list_of_choices_is_described_as_a_list() -> None:
    with pytest.raises(SpecError) as raised:
        spec(groups=group(capacity={"fallback": "on-demand"}))
    (issue,) = raised.value.issues
    assert "a list with any of on-demand, spot, reservation, block" in issue.message
    with pytest.raises(SpecError) as raised:
        spec(groups=group(capacity={"fallback": ["ondemand"]}))
    (issue,) = raised.value.issues
    assert (issue.where, issue.fix) == ("groups.gpu.capacity.fallback[0]", "write `- on-demand`")


@pytest.mark.parametrize("broken", ["aws", "groups", "storage", "network", "budget", "controller", "slurm"])
def test_an_unreadable_section_causes_no_further_issues(broken: str) -> None:
    data = good(**{broken: {"nonsense": 1}})
    with pytest.raises(SpecError) as raised:
        load(data)
    assert validate_readable(data, raised.value.issues) == []


@pytest.mark.parametrize("root_gb", [0, -1, 49, 16385, "200 GB", 200.5])
def test_a_root_disk_of_an_invalid_size_is_rejected(root_gb: object) -> None:
    with pytest.raises(SpecError, match=r"groups\.gpu\.root_gb[\s\S]*a whole number from 50 to 16384"):
        load(good(groups=group(root_gb=root_gb)))


def test_a_root_disk_is_a_field_of_targets_that_have_it() -> None:
    local = load({"name": "demo", "target": "local", "groups": {"gpu": {"count": 1, "root_gb": 500}}})
    assert any(issue.where == "groups.gpu.root_gb" and issue.level == "error" for issue in validate(local))


def test_a_group_of_another_target_has_no_image() -> None:
    local = load({"name": "demo", "target": "local", "groups": {"gpu": {"count": 1, "image": "ami-0123456789abcdef0"}}})
    assert any(issue.where == "groups.gpu.image" and issue.level == "error" for issue in validate(local))
