"""`muster rehearse`: input that cannot be rehearsed is rejected before anything starts."""

from __future__ import annotations

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.target import AwsTarget
from muster.commands.rehearse import rehearse


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_a_speed_that_is_not_positive_is_rejected(speed: float) -> None:
    with pytest.raises(Stop) as caught:
        rehearse("aws-g6-pair", seed=1, speed=speed)
    assert "--speed: " in str(caught.value)
    assert "allowed: any number above 0" in str(caught.value)


@pytest.mark.parametrize("nodes", [0, -2])
def test_fewer_than_one_node_is_rejected(nodes: int) -> None:
    with pytest.raises(Stop, match=rf"--nodes: {nodes} is not allowed; allowed: 1 or more"):
        rehearse("aws-g6-pair", seed=1, speed=10, nodes=nodes)


def test_a_target_without_a_rehearsal_is_rejected_with_those_that_have_one() -> None:
    with pytest.raises(Stop) as caught:
        rehearse("local", seed=1, speed=10)
    assert "stack local has target local, which cannot be rehearsed; allowed: aws" in str(caught.value)


def test_an_unknown_stack_is_rejected() -> None:
    with pytest.raises(Stop, match=r"Pulumi\.nothing\.yaml does not exist"):
        rehearse("nothing", seed=1, speed=10)


def test_the_account_is_not_asked_about_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        pytest.fail("a rehearsal looked something up in the account")

    monkeypatch.setattr(AwsTarget, "look_up", ask)
    monkeypatch.setattr(AwsTarget, "rehearse", lambda _self, stack, *_: stack.home.root)
    rehearse("aws-g6-pair", seed=1, speed=10)
