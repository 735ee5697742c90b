"""`muster upgrade`: what cannot be upgraded is rejected before anything starts, and a failure tells how to go on."""

from __future__ import annotations

import pytest

from bootstrap.upgrade.steps import Releases, plan_upgrade
from infra.engine.stop import Stop
from muster.commands.upgrade import check_release_name, describe_failure, read_spec_text, require_later, upgrade
from tests.bootstrap.clusters import inventory


def test_an_unknown_release_is_rejected_with_the_allowed_ones() -> None:
    with pytest.raises(Stop, match=r"'25\.11' is not a release that muster installs; allowed: 24\.11, 26\.05"):
        check_release_name("25.11")


def test_slurm_cannot_go_back() -> None:
    assert require_later("24.11", "26.05")
    assert not require_later("26.05", "26.05")
    with pytest.raises(Stop, match=r"--to: 24\.11 is older than 26\.05, which runs"):
        require_later("26.05", "24.11")


def test_a_stack_that_is_not_up_is_rejected() -> None:
    with pytest.raises(Stop, match="stack local-required is not up"):
        upgrade("local-required", to="26.05")


def test_the_running_spec_is_the_one_that_the_guard_of_changes_accepted() -> None:
    resources = [
        {"type": "pulumi:pulumi:Stack", "inputs": {}},
        {"type": "pulumi-python:muster:ChangeGuard", "inputs": {"spec": "{}", "stack": "mine"}},
    ]
    assert read_spec_text(resources, "mine") == "{}"
    with pytest.raises(Stop, match="the stack has no cluster yet"):
        read_spec_text(resources[:1], "mine")


def test_a_failure_names_what_is_done_and_the_two_ways_on() -> None:
    steps = plan_upgrade(inventory(), Releases("24.11", "26.05"))
    stop = describe_failure("mine", "node controller, step slurmdbd: it broke.", steps, 2)
    assert stop.what.splitlines() == [
        "the upgrade stopped: node controller, step slurmdbd: it broke.",
        "  done: controller: stop slurmctld and slurmdbd; back up database and queue of 24.11",
        "  done: controller: install Slurm 26.05",
        "  failed: controller: start slurmdbd, which converts the database",
    ]
    assert stop.fix == (
        "remove the cause and continue with `make upgrade STACK=mine`, or go back with "
        "`make upgrade BACK=1 STACK=mine`, which loses what happened since"
    )
