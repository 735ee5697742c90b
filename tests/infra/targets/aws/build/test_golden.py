"""The resources of every example stack, compared with golden copies, which are for review."""

from __future__ import annotations

import json

import pytest

from infra.targets.registry import load_spec as load
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build import golden
from tests.infra.targets.aws.build.capture import ROOT, SECRETS, STACKS, capture, example
from tests.infra.targets.aws.build.golden import FOLDER, SECRET


@pytest.mark.parametrize("stack", STACKS)
def test_resources_match_the_golden_copy(stack: str) -> None:
    assert golden.text(example(stack)) == golden.path(stack).read_text(), "run `make golden` and review the difference"


def test_golden_copies_match_the_examples() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == STACKS


@pytest.mark.parametrize("stack", STACKS)
def test_no_secret_is_in_a_golden_copy(stack: str) -> None:
    text = golden.path(stack).read_text()
    assert SECRET in text
    assert [value for value in SECRETS.values() if value in text] == []


@pytest.mark.parametrize("stack", STACKS)
def test_preview_and_up_create_the_same_resources(stack: str) -> None:
    """No resource may depend on values that only `up` knows."""
    previewed = capture(read(ROOT / "stacks" / f"Pulumi.{stack}.yaml"), stack, preview=True)
    assert [resource.label for resource in previewed] == [resource.label for resource in example(stack)]


def test_the_order_of_groups_does_not_matter() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-full.yaml")
    written = spec.model_dump(exclude_defaults=True)
    reordered = load({**written, "groups": dict(reversed(written["groups"].items()))})
    assert golden.text(capture(reordered, "aws-full")) == golden.text(example("aws-full"))


def test_a_larger_group_changes_only_resources_that_count_nodes() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")
    group = next(iter(spec.groups))
    larger = spec.model_copy(update={"groups": {group: spec.groups[group].model_copy(update={"count": 8})}})
    before = {(e["type"], e["name"]): e for e in json.loads(golden.text(example("aws-p5en-lustre")))}
    after = {(e["type"], e["name"]): e for e in json.loads(golden.text(capture(larger, "aws-p5en-lustre")))}
    assert before.keys() == after.keys()
    differing = {kind.rpartition(":")[2] for (kind, name) in before if before[kind, name] != after[kind, name]}
    assert differing <= {"AwsAccess", "AwsHostKeys", "AwsReadyGate", "ChangeGuard", "Nodes", "AwsReported"}
