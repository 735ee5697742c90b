"""The secrets of a cluster: a step of a rotation changes the Slurm key and nothing else."""

from __future__ import annotations

import base64
from typing import Any

from infra.resources.secrets import ClusterSecretsProvider
from slurm.config.auth_key import find_next_step, is_key_set

PROVIDER = ClusterSecretsProvider()
NEW = {"cluster": "demo", "rotation": ""}


def apply(olds: dict[str, Any], rotation: str) -> dict[str, Any]:
    """Return the state after a run of Pulumi that takes a step."""
    news = {"cluster": "demo", "rotation": rotation}
    difference = PROVIDER.diff("id", olds, news)
    assert not difference.replaces
    return PROVIDER.update("id", olds, news).outs or {} if difference.changes else olds


def test_three_steps_replace_the_slurm_key_only() -> None:
    first = PROVIDER.create(NEW).outs
    state = first
    for step in ("accept", "sign", "drop"):
        state = apply(state, step)
        assert apply(state, "") == state, "a plain `up` keeps the step that was taken"
        assert apply(state, step) == state, "a run that is repeated takes no step twice"
    assert {name for name in first if first[name] != state[name]} == {"slurm_key", "rotation"}
    assert not is_key_set(base64.b64decode(state["slurm_key"]))


def test_steps_that_are_not_next_change_nothing() -> None:
    first = PROVIDER.create(NEW).outs
    assert apply(first, "sign") == first
    assert apply(first, "drop") == first
    accepting = apply(first, "accept")
    assert apply(accepting, "drop") == accepting
    assert find_next_step(base64.b64decode(accepting["slurm_key"])) == "sign"


def test_another_cluster_gets_other_secrets() -> None:
    first = PROVIDER.create(NEW).outs
    assert PROVIDER.diff("id", first, {"cluster": "other", "rotation": ""}).replaces == ["cluster"]
