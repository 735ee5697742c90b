"""Hooks and policies of a spec in a rehearsal: what the spec then has, and which records of hooks are wrong."""

from __future__ import annotations

import pytest

from infra.targets.aws.rehearse.policies_and_hooks import describe_additions, list_wrong_hooks
from infra.targets.aws.spec import Aws


def test_the_spec_has_a_hook_of_each_kind_and_a_role_of_jobs() -> None:
    section = Aws.model_validate({"region": "us-east-1", **describe_additions("123456789012", "tools")})
    assert {name: (hook.when, hook.args) for name, hook in section.hooks.items()} == {
        "first": ("start", ("start",)),
        "last": ("configured", ("configured",)),
    }
    assert section.policies.jobs == ("arn:aws:iam::123456789012:policy/rehearsal-read-data",)


@pytest.mark.parametrize(
    ("name", "record", "wrong"),
    [
        ("controller", "start controller inactive\n", []),
        ("gpu-1", "start gpu-1 inactive\nconfigured gpu-1 inactive\n", []),
        ("gpu-1", "start gpu-1 inactive\n", ["configured gpu-1 inactive"]),
        (
            "gpu-1",
            "start gpu-1 inactive\nconfigured gpu-1 active\n",
            ["configured gpu-1 active", "configured gpu-1 inactive"],
        ),
        ("controller", "start controller inactive\n" * 2, ["start controller inactive"] * 2),
    ],
    ids=["controller", "compute", "missing", "too late", "twice"],
)
def test_each_hook_runs_once_and_before_jobs(name: str, record: str, wrong: list[str]) -> None:
    assert list_wrong_hooks(name, record) == wrong
