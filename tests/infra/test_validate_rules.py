"""Validators: the exact message of each rule, all rules at once, and examples without issues."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import names
from cluster.spec.issue import render
from infra.targets.local.target import LocalTarget
from infra.targets.mixins import HostFacts
from infra.targets.registry import load_spec as load
from infra.targets.registry import read_spec as read
from infra.validate import validate
from infra.validate.slurm_options import parse_time_limit
from tests.infra.bad_spec_table import BadSpec, read_table, valid_spec

ROOT = Path(__file__).parents[2]
TABLE = read_table("test_validate_bad.yaml")
LARGE_HOST = HostFacts(cpus=64, memory_mb=500_000)


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.title)
def test_bad_spec(bad: BadSpec) -> None:
    issues = validate(load(bad.data))
    assert render(issues) == bad.expected_text
    assert [issue.code for issue in issues] == bad.codes


def test_valid_spec_has_no_issues() -> None:
    assert validate(load(valid_spec()), LARGE_HOST, ROOT) == []
    assert render([]) == ""


@pytest.mark.parametrize("stack", LocalTarget.examples)
def test_examples_have_no_issues(stack: str) -> None:
    assert validate(read(ROOT / "stacks" / f"Pulumi.{stack}.yaml"), LARGE_HOST, ROOT) == []


def test_issues_of_all_rules_are_reported_at_once() -> None:
    spec = {
        **valid_spec(),
        "groups": {"login": {"count": 2, "fabric": "efa"}, "x": {}},
        "network": {"cidr": "8.8.8.0/24"},
        "tags": {"muster.x": "1"},
    }
    codes = [issue.code for issue in validate(load(spec))]
    assert codes == ["no_count", "reserved_group", "fabric", "cidr_public", "tag_reserved"]


def test_more_cpus_than_the_machine_has() -> None:
    spec = load({**valid_spec(), "groups": {"gpu": {"count": 2, "size": {"cpus": 8}}}})
    assert render(validate(spec, HostFacts(cpus=4, memory_mb=16_000))) == (
        "error    groups.gpu.size.cpus\n"
        "         8 is more CPUs than this machine has; allowed: 1 to 4\n"
        "         fix: write `size: {cpus: 4}`\n"
        "\n"
        "1 error"
    )


def test_default_sizes_are_checked_too() -> None:
    issues = validate(load(valid_spec()), HostFacts(cpus=1, memory_mb=16_000))
    assert {issue.where for issue in issues} == {"controller.size.cpus", "login.size.cpus", "groups.gpu.size.cpus"}


def test_a_machine_that_cannot_limit_jobs_is_reported_before_anything_is_created() -> None:
    host = HostFacts(cpus=64, memory_mb=500_000, can_limit_memory=False)
    (issue,) = validate(load(valid_spec()), host)
    assert (issue.level, issue.where) == ("warning", "slurm.cgroups")
    assert "`cgroups: none`" in issue.fix
    assert validate(load(valid_spec() | {"slurm": {"cgroups": "none"}}), host) == []


def test_more_memory_than_the_machine_has() -> None:
    spec = load({**valid_spec(), "controller": {"size": {"memory_mb": 32_000}}})
    issues = validate(spec, HostFacts(cpus=4, memory_mb=16_000))
    assert [(i.level, i.where, i.message) for i in issues] == [
        ("error", "controller.size.memory_mb", "32000 is more MiB than this machine has; allowed: 512 to 16000"),
        ("warning", "groups", "the limits of 4 nodes add up to 37120 MiB; this machine has 16000 MiB"),
    ]
    assert "lower `controller.size.memory_mb` or the counts" in str(issues)


def test_host_rules_apply_to_local_clusters_only() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    assert validate(spec, HostFacts(cpus=1, memory_mb=512)) == validate(spec)


def test_lock_file_must_exist(tmp_path: Path) -> None:
    issues = validate(load(valid_spec()), root=tmp_path)
    assert [(i.where, i.message) for i in issues] == [
        ("software.training_lock", f"'trainer/requirements.lock' does not exist in {tmp_path}")
    ]


def test_errors_come_first_and_are_counted() -> None:
    spec = load({**valid_spec(), "storage": {"shared": {"size_gb": 5}}, "tags": {"aws:x": "1"}})
    text = render(validate(spec))
    assert text.startswith("error    tags.aws:x\n")
    assert text.endswith("\n1 error, 1 warning")


def test_longest_names_are_valid_host_names() -> None:
    assert len(names.container("c" * 20, names.member("g" * 20, 1024))) <= 63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-12", 216_000),
        ("1-00:30", 88_200),
        ("7-00:00:00", 604_800),
        ("unlimited", float("inf")),
        ("", None),
        ("1:2:3:4", None),
        ("-5", None),
        ("1 hour", None),
        ("60\n", None),
    ],
)
def test_time_limits(text: str, expected: float | None) -> None:
    assert parse_time_limit(text) == expected
