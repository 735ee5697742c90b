"""The rehearsed stack: its address range, machines that fit, the caller's own account out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.catalog.instances import find_entry
from cluster.spec import ClusterSpec
from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws.account_types import FILE, REHEARSED_FILE
from infra.targets.aws.rehearse.rehearsed_stack import (
    HERE,
    MEMORY_MB,
    list_entries,
    list_unsupported,
    prepare_stack,
    scale_down,
)
from infra.targets.aws.target import AwsTarget
from infra.targets.registry import read_spec
from tests.harness import REPO

CPUS, NODES, CIDR = 2, 2, "10.96.16.0/20"


def test_machines_are_scaled_down_to_this_one() -> None:
    entry = scale_down(_find_entry("p5en.48xlarge"), CPUS)
    assert (entry["vcpus"], entry["cores"], entry["memory_mb"]) == (CPUS, CPUS, MEMORY_MB)
    assert entry["gpus"][0]["count"] == 8
    assert scale_down(_find_entry("m7i.large"), 16)["vcpus"] == 2


def test_ids_of_another_account_are_refused_before_the_last_rehearsal_is_removed(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    text = (REPO / "stacks" / "Pulumi.aws-existing-vpc.yaml").read_text()
    (stacks / "Pulumi.theirs.yaml").write_text(text.replace("123456789012", "210987654321"))
    last = tmp_path / "rehearsals" / "theirs" / "timeline.txt"
    last.parent.mkdir(parents=True)
    last.touch()
    home = Home.of({"MUSTER_HOME": str(tmp_path), "MUSTER_STACKS": str(stacks)})
    with pytest.raises(Stop) as caught:
        prepare_stack(home.stack("theirs"), CIDR, CPUS, NODES)
    refused = (
        "aws.permissions_boundary: 'arn:aws:iam::210987654321:policy/boundary' (allowed: one of account 123456789012"
    )
    assert refused in str(caught.value)
    assert last.exists()


@pytest.mark.parametrize("name", AwsTarget.examples)
def test_every_example_can_be_rehearsed(name: str) -> None:
    spec = read_spec(Home.of({}).stack(name).file)
    assert list_unsupported(spec, list_entries(spec, Home.of({}).stack(name))) == []


@pytest.mark.parametrize(
    ("nodes", "counts"), [(1, {"h200": (1, None), "burst": (None, 16)}), (4, {"h200": (2, None), "burst": (None, 16)})]
)
def test_static_groups_are_cut_to_the_nodes_that_fit(
    nodes: int, counts: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsed_stack.replace_types", lambda _: None)
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-full")
    rehearsed = prepare_stack(stack, CIDR, CPUS, nodes)
    assert {name: (group.count, group.max) for name, group in rehearsed.spec.groups.items()} == counts
    assert f"groups.burst: {nodes} of 16 nodes run (--nodes)" in rehearsed.cuts
    left_out = [line for line in rehearsed.cuts if "left out" in line]
    assert [line.partition(":")[0] for line in left_out] == ["aws.policies", "aws.hooks"]
    assert len(rehearsed.cuts) - len(left_out) == (2 if nodes < 2 else 1)


def test_an_existing_vpc_gets_no_range_in_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsed_stack.replace_types", lambda _: None)
    rehearsed = prepare_stack(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-existing-vpc"), CIDR, CPUS, NODES)
    assert (rehearsed.cidr, rehearsed.spec.network.cidr) == (CIDR, None)


def change_type(instance_type: str) -> ClusterSpec:
    spec = read_spec(Home.of({}).stack("aws-g6-pair").file)
    (name,) = spec.groups
    group = spec.groups[name].model_copy(update={"instance_type": instance_type})
    return spec.model_copy(update={"groups": {name: group}})


def test_a_type_that_nobody_describes_is_refused(tmp_path: Path) -> None:
    spec, stack = change_type("z9.large"), Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-g6-pair")
    assert list_unsupported(spec, list_entries(spec, stack)) == [
        "groups.gpu.instance_type: 'z9.large' (allowed: a type of the catalog, or one that AWS has described to"
        " `muster check`)"
    ]


@pytest.mark.parametrize("instance_type", ["g4dn.12xlarge", "inf2.8xlarge", "p6e-gb200.36xlarge", "g5g.xlarge"])
def test_types_outside_the_catalog_and_ultraservers_have_stand_ins(instance_type: str, tmp_path: Path) -> None:
    """moto has AWS's descriptions of the first two and the last; the catalog describes the third."""
    spec, stack = change_type(instance_type), Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-g6-pair")
    entries = list_entries(spec, stack)
    assert list_unsupported(spec, entries) == []
    assert scale_down(entries[instance_type], CPUS)["architecture"] == HERE


def test_a_type_that_the_account_has_described_needs_no_copy_of_moto(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_HOME": str(tmp_path)})
    entry = {**_find_entry("g6.8xlarge"), "regions": ["us-east-1"]}
    (tmp_path / FILE).write_text(json.dumps({"z9.large": entry}))
    spec = change_type("z9.large")
    assert list_entries(spec, home.stack("aws-g6-pair"))["z9.large"] == entry


def test_machines_with_other_cpus_run_on_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsed_stack.replace_types", lambda _: None)
    monkeypatch.setattr("infra.targets.aws.rehearse.rehearsed_stack.HERE", "arm64")
    rehearsed = prepare_stack(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("aws-g6-pair"), CIDR, CPUS, NODES)
    entries = json.loads((rehearsed.home.root / REHEARSED_FILE).read_text())
    assert {name: entry["architecture"] for name, entry in entries.items()} == {
        "g6.8xlarge": "arm64", "m7i.large": "arm64",
    }  # fmt: skip
    assert entries["m7i.large"]["memory_mb"] == 8192
    assert "groups.gpu.instance_type: g6.8xlarge runs as arm64, although its CPUs are x86_64" in rehearsed.cuts


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
    rehearsed = prepare_stack(stack, CIDR, CPUS, NODES)
    env = rehearsed.environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, Path("/tools"))
    own = {name: value for name, value in env.items() if name.startswith("AWS_")}
    files = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    assert own == {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", **files}
    assert env["NO_PROXY"] == env["no_proxy"] == "intranet,127.0.0.1"
    assert sorted(json.loads((rehearsed.home.root / REHEARSED_FILE).read_text())) == ["g6.8xlarge"]
    command = [sys.executable, "-c", PRINT_PLAN, "aws-g6-pair"]
    printed = subprocess.run(command, env=env, cwd=REPO, text=True, capture_output=True, check=True).stdout
    assert printed.split() == [str(CPUS), str(int(MEMORY_MB * 0.97)), CIDR]
    assert os.environ["AWS_PROFILE"] == "my-own-account"


def test_a_home_without_rehearsal_keeps_the_catalog(tmp_path: Path) -> None:
    env = {**os.environ, "MUSTER_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PRINT_PLAN, "aws-g6-pair"]
    printed = subprocess.run(command, env=env, cwd=REPO, text=True, capture_output=True, check=True).stdout
    assert printed.split()[0] == "32"


def _find_entry(name: str) -> dict[str, Any]:
    entry = find_entry(name)
    assert entry
    return entry
