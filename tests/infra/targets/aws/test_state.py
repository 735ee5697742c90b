"""The cluster as recorded in a stack's state takes precedence over the stack file; its account is checked first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.resources.error import ResourceError
from infra.targets.aws.state import StateRecord, read_state_record
from infra.targets.aws.target import AwsTarget
from infra.targets.target import Deployment, Leftover
from muster.commands import teardown
from muster.deployments import search_deployment
from tests.infra.targets.aws.test_facts import start_instance
from tests.moto_server import ACCOUNT, REGION, Moto

PROVIDER = {
    "type": "pulumi:providers:aws",
    "inputs": {"region": "eu-west-1", "defaultTags": json.dumps({"tags": {"muster.cluster": "pair"}})},
}
RESOLVED = {"type": "pulumi-python:dynamic/muster:AwsResolved", "outputs": {"account": "111122223333"}}
STORAGE = {
    "type": "aws:efs/fileSystem:FileSystem",
    "outputs": {
        "arn": "arn:aws:elasticfilesystem:eu-west-1:444455556666:file-system/fs-1",
        "tagsAll": {"muster.cluster": "kept"},
    },
}


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    return Home.of({"MUSTER_HOME": str(tmp_path), "MUSTER_STACKS": str(tmp_path / "stacks")}).stack("s")


def write_state(stack: StackHome, *resources: dict[str, Any]) -> None:
    stack.state.parent.mkdir(parents=True, exist_ok=True)
    stack.state.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ((PROVIDER, RESOLVED), StateRecord("pair", "eu-west-1", "111122223333")),
        # Teardown kept the storage: the resolved account is no longer recorded, but the storage's ARN names it.
        (({**PROVIDER, "inputs": {"region": "eu-west-1"}}, STORAGE), StateRecord("kept", "eu-west-1", "444455556666")),
        (({"type": "pulumi:providers:aws"},), StateRecord("", "", "")),
        (
            (PROVIDER, {**RESOLVED, "outputs": {"account": {"ciphertext": "v1:x"}}}),
            StateRecord("pair", "eu-west-1", ""),
        ),
        ((RESOLVED,), None),
        ((), None),
    ],
)
def test_the_cluster_is_read_from_the_state(
    stack: StackHome, resources: tuple[dict[str, Any], ...], expected: StateRecord | None
) -> None:
    write_state(stack, *resources)
    assert read_state_record(stack.state) == expected


@pytest.mark.parametrize("text", ["", "[]", '{"checkpoint": {}}', '{"checkpoint": {"latest": {"resources": [3]}}}'])
def test_a_state_without_a_cluster_is_ignored(stack: StackHome, text: str) -> None:
    stack.state.parent.mkdir(parents=True)
    stack.state.write_text(text)
    assert read_state_record(stack.state) is None


@pytest.mark.parametrize("file", [None, "config: {nonsense", "config: {'muster:cluster': {name: other}}"])
def test_a_cluster_is_found_without_a_readable_stack_file(stack: StackHome, file: str | None) -> None:
    """If the first `up` failed before it wrote access files, only the state knows of a cluster that costs money."""
    write_state(stack, PROVIDER, RESOLVED)
    if file is not None:
        stack.file.parent.mkdir()
        stack.file.write_text(file)
    existing = search_deployment(stack)
    assert existing is not None
    target, deployment = existing
    assert (target.name, deployment) == ("aws", Deployment("pair", "s", "eu-west-1", "111122223333"))


def test_a_state_without_a_cluster_name_is_an_error(stack: StackHome) -> None:
    write_state(stack, {"type": "pulumi:providers:aws", "inputs": {"region": "eu-west-1"}})
    with pytest.raises(Stop, match="nothing says which cluster it is"):
        search_deployment(stack)


def test_access_to_another_account_is_an_error(aws: Moto) -> None:
    target = AwsTarget()
    target.check_access(Deployment("pair", "s", REGION))
    target.check_access(Deployment("pair", "s", REGION, ACCOUNT))
    other = Deployment("pair", "s", REGION, "111122223333")
    with pytest.raises(
        ResourceError, match=f"cluster pair is in account 111122223333, but the credentials are for account {ACCOUNT}"
    ):
        target.check_access(other)
    aws.fail("GetCallerIdentity", "ExpiredToken")
    with pytest.raises(ResourceError, match=f"the account cannot be queried in {REGION}: ExpiredToken. Fix: use cred"):
        target.check_access(other)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("AccessDenied", "use credentials of the cluster's account"),
        # AWS's library repeats it for half a minute.
        pytest.param("Throttling", "run the command again in a minute", marks=pytest.mark.nightly),
        ("OptInRequired", "use credentials of the cluster's account"),
        ("NeverHeardOf", "remove the cause that it names, then run the command again"),
    ],
)
def test_the_fix_fits_the_error(aws: Moto, code: str, fix: str) -> None:
    aws.interfere = lambda *_: code
    with pytest.raises(ResourceError, match=f"the account cannot be queried in {REGION}: {code}. Fix: {fix}"):
        AwsTarget().check_access(Deployment("pair", "s", REGION, ACCOUNT))


def test_teardown_in_another_account_keeps_the_state(
    stack: StackHome,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_state(stack, {"type": PROVIDER["type"], "inputs": {"region": REGION}}, STORAGE)
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    with pytest.raises(ResourceError, match="but the credentials are for account"):
        teardown.teardown("s", yes=True, force=True)
    assert read_state_record(stack.state) is not None
    assert set(aws.count()) == {"GetCallerIdentity"}


def test_teardown_stops_if_the_job_queue_cannot_be_queried(
    stack: StackHome,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = {"type": STORAGE["type"], "outputs": {"tagsAll": {"muster.cluster": "pair"}}}
    write_state(stack, {"type": PROVIDER["type"], "inputs": {"region": REGION}}, tagged)
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    aws.fail("DescribeInstances", "UnauthorizedOperation", times=9)
    with pytest.raises(
        Stop, match="the job queue cannot be queried in us-east-1: UnauthorizedOperation; nothing was rem"
    ):
        teardown.teardown("s", yes=True, force=False)


def test_resources_of_another_home_are_not_removed_by_name(
    stack: StackHome,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two users of the same example have the same names and may share an account."""
    stack.file.parent.mkdir()
    spec = "{name: pair, target: aws, aws: {region: %s}, groups: {gpu: {instance_type: g6.8xlarge, min: 0, max: 2}}}"
    stack.file.write_text(f"config: {{'muster:cluster': {spec % REGION}}}\n")
    start_instance(aws, "gpu-1", "compute", **{"muster.cluster": "pair"})
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    with pytest.raises(Stop, match=r"us-east-1 has 1 resource with the names .* nothing was removed") as stopped:
        teardown.teardown("s", yes=True, force=False)
    assert "`make teardown FORCE=1 STACK=s`" in stopped.value.fix
    assert "TerminateInstances" not in aws.count()


@pytest.mark.parametrize(
    ("region", "kind", "notes"),
    [
        ("eu-west-1", "EFS filesystem", ["prices are those of us-east-1; eu-west-1 may cost up to a third more"]),
        ("eu-west-1", "instance", []),
        ("us-east-1", "EFS filesystem", []),
    ],
)
def test_prices_of_another_region_have_a_note(region: str, kind: str, notes: list[str]) -> None:
    is_node = kind == "instance"
    left = [Leftover(kind, "x", region=region, usd_per_hour=1.0, is_node=is_node), Leftover("role", "y", region=region)]
    assert AwsTarget().price_notes(left) == notes


def test_kept_filesystems_are_not_deleted_by_an_option(
    stack: StackHome,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = {"type": STORAGE["type"], "outputs": {"tagsAll": {"muster.cluster": "pair"}}}
    write_state(stack, {"type": PROVIDER["type"], "inputs": {"region": REGION}}, tagged)
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    with pytest.raises(Stop, match="--delete-storage: target aws does not delete storage that it keeps") as stopped:
        teardown.teardown("s", yes=True, force=True, delete_storage=True)
    assert stopped.value.fix == "delete the filesystems and snapshots in AWS by hand"
    assert not aws.count()
    assert read_state_record(stack.state) is not None
