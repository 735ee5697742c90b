"""The step that installs Slurm on AWS: the controller builds packages, the other machines wait for them."""

from __future__ import annotations

from dataclasses import replace

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import packages
from bootstrap.steps.cloud import slurm_packages
from cluster.inventory import Node
from tests.infra.targets.aws.node.clusters import desired, ubuntu, with_release
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU


def test_the_controller_builds_slurm_and_the_others_wait() -> None:
    (build,) = slurm_packages.STEP.actions(ubuntu(), CONTROLLER, desired())
    (wait,) = slurm_packages.STEP.actions(ubuntu(), GPU, desired())
    assert "MODE=build\n" in build.script
    assert "MODE=wait\n" in wait.script
    assert "NAMES='slurm-smd slurm-smd-client slurm-smd-slurmd slurm-smd-libpam-slurm-adopt'\n" in wait.script
    assert _value(build, "KEY") == _value(wait, "KEY")
    (other,) = slurm_packages.STEP.actions(ubuntu(distribution="ubuntu 24.04"), GPU, desired())
    assert _value(other, "KEY") != _value(wait, "KEY")
    assert packages.SLURM.isdisjoint(_install(ubuntu(), CONTROLLER))
    assert "g++" in _install(ubuntu(), CONTROLLER)
    debian = set(_install(ubuntu(distribution="debian 13"), CONTROLLER, with_release("24.11")))
    assert debian == {*packages.list_packages(CONTROLLER), "g++", "nftables"}


def test_debian_13_builds_a_release_that_it_does_not_have() -> None:
    newer = with_release("26.05")
    debian = ubuntu(distribution="debian 13")
    assert slurm_packages.STEP.skip(debian, GPU, newer) == ""
    assert [a.title for a in slurm_packages.STEP.actions(debian, GPU, newer)] == ["fetch Slurm 26.05.5"]
    image = replace(debian, packages={"slurm-client": "26.05.5-1"})
    assert slurm_packages.STEP.skip(image, GPU, newer) == "the distribution has this release"
    assert "slurmd" not in packages.STEP.actions(replace(debian, packages={}), GPU, newer)[0].title.split()


def _value(action: Action, name: str) -> str:
    return next(line for line in action.script.splitlines() if line.startswith(f"{name}="))


def _install(facts: Facts, node: Node, target: Desired | None = None) -> list[str]:
    (action,) = packages.STEP.actions(facts, node, target or desired())
    return action.title.split()[1:]
