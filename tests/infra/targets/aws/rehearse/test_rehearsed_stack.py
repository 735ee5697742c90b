"""The rehearsed stack: an address range that is free, machines that fit, the caller's own account out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws.account_types import REHEARSED_FILE
from infra.targets.aws.rehearse.rehearsed_stack import (
    MEMORY_MB,
    choose_range,
    list_unsupported,
    prepare_stack,
    scale_down,
)
from infra.targets.aws.target import AwsTarget
from infra.targets.registry import read_spec
from tests.harness import REPO

CPUS = 2


def test_a_range_that_docker_uses_is_avoided() -> None:
    assert choose_range([]) == "10.96.0.0/20"
    assert choose_range([IPv4Network("10.96.3.0/24"), IPv4Network("172.17.0.0/16")]) == "10.96.16.0/20"


def test_a_machine_without_a_free_range_is_an_error_with_a_fix() -> None:
    with pytest.raises(Stop, match=r"no /20 of 10\.96\.0\.0/12 is free"):
        choose_range([IPv4Network("10.0.0.0/8")])


def test_machines_are_scaled_down_to_this_one() -> None:
    entry = scale_down("p5en.48xlarge", CPUS)
    assert (entry["vcpus"], entry["cores"], entry["memory_mb"]) == (CPUS, CPUS, MEMORY_MB)
    assert entry["gpus"][0]["count"] == 8
    assert scale_down("m7i.large", 16)["vcpus"] == 2


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("aws-p5en-lustre", "storage.shared.kind: 'fsx-lustre' (allowed: efs)"),
        ("aws-existing-vpc", "network.vpc_id: 'vpc-"),
        ("aws-existing-vpc", "aws.permissions_boundary: 'arn:"),
        ("aws-full", "aws.ami: 'ami-0123456789abcdef0'; aws.plain_ami: 'ami-0123456789abcdef1'"),
        ("aws-full", "aws.kms_key: 'arn:"),
        ("aws-full", "groups.h200.capacity.reservation: 'cr-0123456789abcdef0'"),
    ],
)
def test_a_stack_with_parts_that_have_no_stand_in_is_refused(stack: str, message: str, tmp_path: Path) -> None:
    last = tmp_path / "rehearsals" / stack / "timeline.txt"
    last.parent.mkdir(parents=True)
    last.touch()
    with pytest.raises(Stop) as caught:
        prepare_stack(Home.of({"MUSTER_HOME": str(tmp_path)}).stack(stack), [], CPUS)
    assert message in str(caught.value)
    assert last.exists()


def test_the_page_names_the_stacks_that_can_be_rehearsed() -> None:
    able = [name for name in AwsTarget.examples if not list_unsupported(read_spec(Home.of({}).stack(name).file))]
    assert able == ["aws-g6-pair"]
    assert "Of the example stacks only `aws-g6-pair` can be rehearsed" in (REPO / "docs" / "aws.md").read_text()


def test_a_type_outside_the_catalog_is_refused() -> None:
    spec = read_spec(Home.of({}).stack("aws-g6-pair").file)
    (name,) = spec.groups
    group = spec.groups[name].model_copy(update={"instance_type": "z9.large"})
    assert list_unsupported(spec.model_copy(update={"groups": {name: group}})) == [
        f"groups.{name}.instance_type: 'z9.large' (allowed: a type of the catalog)"
    ]


# In a process of its own, because a rehearsal replaces types of the process's catalog.
PRINT_PLAN = """
import os, sys
from infra.home import Home
from infra.targets.registry import read_spec, target_of
spec = read_spec(Home.of(os.environ).stack(sys.argv[1]).file)
target = target_of(spec)
assert [issue for issue in target.validate(spec) if issue.level == "error"] == []
print(target.plan(spec).sets[0].cpus, target.plan(spec).sets[0].memory_mb, spec.network.cidr)
"""


def test_the_program_of_a_rehearsal_sees_the_scaled_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "my-own-account")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsed_stack.replace_types", lambda _: None)
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-g6-pair")
    rehearsed = prepare_stack(stack, [IPv4Network("10.96.0.0/20")], CPUS)
    env = rehearsed.environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, Path("/tools"))
    own = {name: value for name, value in env.items() if name.startswith("AWS_")}
    files = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    assert own == {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", **files}
    assert env["NO_PROXY"] == env["no_proxy"] == "intranet,127.0.0.1"
    assert sorted(json.loads((rehearsed.home.root / REHEARSED_FILE).read_text())) == ["g6.8xlarge"]
    command = [sys.executable, "-c", PRINT_PLAN, "aws-g6-pair"]
    printed = subprocess.run(command, env=env, cwd=REPO, text=True, capture_output=True, check=True).stdout
    assert printed.split() == [str(CPUS), str(int(MEMORY_MB * 0.97)), "10.96.16.0/20"]
    assert os.environ["AWS_PROFILE"] == "my-own-account"


def test_a_home_without_rehearsal_keeps_the_catalog(tmp_path: Path) -> None:
    env = {**os.environ, "MUSTER_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PRINT_PLAN, "aws-g6-pair"]
    printed = subprocess.run(command, env=env, cwd=REPO, text=True, capture_output=True, check=True).stdout
    assert printed.split()[0] == "32"
