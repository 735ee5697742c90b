"""What a stack's own state says of a cluster on AWS goes before the stack file, and its account before everything."""

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
from infra.targets.target import Deployment, Leftover, Leftovers
from muster.commands import teardown
from muster.deployments import search_deployment
from tests.infra.targets.aws.test_facts import start
from tests.moto_server import ACCOUNT, REGION, Moto, aws, moto  # noqa: F401  # fixtures

PROVIDER = {
    "type": "pulumi:providers:aws",
    "inputs": {"region": "eu-west-1", "defaultTags": json.dumps({"tags": {"muster.cluster": "pair"}})},
}
RESOLVED = {"type": "pulumi-python:dynamic/muster:AwsResolved", "outputs": {"account": "111122223333"}}
KEPT = {
    "type": "aws:efs/fileSystem:FileSystem",
    "outputs": {
        "arn": "arn:aws:elasticfilesystem:eu-west-1:444455556666:file-system/fs-1",
        "tagsAll": {"muster.cluster": "kept"},
    },
}


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    return Home.of({"MUSTER_HOME": str(tmp_path), "MUSTER_STACKS": str(tmp_path / "stacks")}).stack("s")


def keep(stack: StackHome, *resources: dict[str, Any]) -> None:
    stack.state.parent.mkdir(parents=True, exist_ok=True)
    stack.state.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ((PROVIDER, RESOLVED), StateRecord("pair", "eu-west-1", "111122223333")),
        # Teardown left storage: what was asked once is gone, the storage's own address is not.
        (({**PROVIDER, "inputs": {"region": "eu-west-1"}}, KEPT), StateRecord("kept", "eu-west-1", "444455556666")),
        (({"type": "pulumi:providers:aws"},), StateRecord("", "", "")),
        (
            (PROVIDER, {**RESOLVED, "outputs": {"account": {"ciphertext": "v1:x"}}}),
            StateRecord("pair", "eu-west-1", ""),
        ),
        ((RESOLVED,), None),
        ((), None),
    ],
)
def test_read_from_the_state(
    stack: StackHome, resources: tuple[dict[str, Any], ...], found: StateRecord | None
) -> None:
    keep(stack, *resources)
    assert read_state_record(stack.state) == found


@pytest.mark.parametrize("text", ["", "[]", '{"checkpoint": {}}', '{"checkpoint": {"latest": {"resources": [3]}}}'])
def test_a_state_that_says_nothing(stack: StackHome, text: str) -> None:
    stack.state.parent.mkdir(parents=True)
    stack.state.write_text(text)
    assert read_state_record(stack.state) is None


@pytest.mark.parametrize("file", [None, "config: {nonsense", "config: {'muster:cluster': {name: other}}"])
def test_a_cluster_is_known_without_a_readable_stack_file(stack: StackHome, file: str | None) -> None:
    """Its first `up` failed before there were access files: without this it would be forgotten, and paid for."""
    keep(stack, PROVIDER, RESOLVED)
    if file is not None:
        stack.file.parent.mkdir()
        stack.file.write_text(file)
    existing = search_deployment(stack)
    assert existing is not None
    target, deployment = existing
    assert (target.name, deployment) == ("aws", Deployment("pair", "s", "eu-west-1", "111122223333"))


def test_a_state_that_does_not_say_which_cluster_is_not_forgotten(stack: StackHome) -> None:
    keep(stack, {"type": "pulumi:providers:aws", "inputs": {"region": "eu-west-1"}})
    with pytest.raises(Stop, match="nothing says which cluster it is"):
        search_deployment(stack)


def test_nothing_is_concluded_in_another_account(aws: Moto) -> None:  # noqa: F811
    target = AwsTarget()
    target.check_access(Deployment("pair", "s", REGION))
    target.check_access(Deployment("pair", "s", REGION, ACCOUNT))
    other = Deployment("pair", "s", REGION, "111122223333")
    with pytest.raises(
        ResourceError, match=f"cluster pair is in account 111122223333, but the credentials are for account {ACCOUNT}"
    ):
        target.check_access(other)
    aws.fail("GetCallerIdentity", "ExpiredToken")
    with pytest.raises(ResourceError, match=f"the account cannot be queried in {REGION}: ExpiredToken"):
        target.check_access(other)


def test_teardown_with_credentials_of_another_account_forgets_nothing(
    stack: StackHome,
    aws: Moto,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(stack, {"type": PROVIDER["type"], "inputs": {"region": REGION}}, KEPT)
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    with pytest.raises(ResourceError, match="but the credentials are for account"):
        teardown.teardown("s", yes=True, force=True)
    assert read_state_record(stack.state) is not None
    assert set(aws.count()) == {"GetCallerIdentity"}


def test_machines_that_could_not_be_listed_may_have_jobs(
    stack: StackHome,
    aws: Moto,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = {"type": KEPT["type"], "outputs": {"tagsAll": {"muster.cluster": "pair"}}}
    keep(stack, {"type": PROVIDER["type"], "inputs": {"region": REGION}}, tagged)
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    aws.fail("DescribeInstances", "UnauthorizedOperation", times=9)
    with pytest.raises(
        Stop, match="the job queue cannot be queried in us-east-1: UnauthorizedOperation; nothing was rem"
    ):
        teardown.teardown("s", yes=True, force=False)


def test_what_this_home_has_not_made_is_not_removed_by_its_name(
    stack: StackHome,
    aws: Moto,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two people who use the same example have the same names, and may share an account."""
    stack.file.parent.mkdir()
    spec = "{name: pair, target: aws, aws: {region: %s}, groups: {gpu: {instance_type: g6.8xlarge, min: 0, max: 2}}}"
    stack.file.write_text(f"config: {{'muster:cluster': {spec % REGION}}}\n")
    start(aws, "gpu-1", "compute", **{"muster.cluster": "pair"})
    monkeypatch.setattr(teardown, "resolve_stack", lambda _name: stack)
    with pytest.raises(Stop, match=r"1 resources in us-east-1 carry the names .* nothing was removed") as stopped:
        teardown.teardown("s", yes=True, force=False)
    assert "`make teardown FORCE=1 STACK=s`" in stopped.value.fix
    assert "TerminateInstances" not in aws.count()


@pytest.mark.parametrize(
    ("region", "kind", "said"),
    [
        ("eu-west-1", "EFS filesystem", ["prices are those of us-east-1; eu-west-1 may cost up to a third more"]),
        ("eu-west-1", "instance", []),
        ("us-east-1", "EFS filesystem", []),
    ],
)
def test_a_price_of_another_region_is_said_to_be_one(region: str, kind: str, said: list[str]) -> None:
    left = Leftovers([Leftover(kind, "x", usd_per_hour=1.0), Leftover("role", "y")])
    assert list(teardown._price_notes(Deployment("pair", "s", region), left)) == said
