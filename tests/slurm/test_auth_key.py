"""The rotation of Slurm's key: its steps, and that nodes one step apart accept each other."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest

from slurm.config.auth_key import KEY_BYTES, STEPS, find_next_step, generate_key, is_key_set, take_step

OLD = generate_key()


def rotate(content: bytes) -> list[bytes]:
    """Return the contents before, between and after the steps of a rotation."""
    contents = [content]
    for step in STEPS:
        assert find_next_step(contents[-1]) == step
        contents.append(take_step(contents[-1], step))
    return contents


def sign(content: bytes) -> tuple[str | None, bytes]:
    """Return name and key with which a daemon signs: the default of its set, or its only key, which has no name."""
    if not is_key_set(content):
        return None, content
    (entry,) = (key for key in json.loads(content)["keys"] if key.get("use") == "default")
    return entry["kid"], base64.urlsafe_b64decode(entry["k"])


def accepts(content: bytes, name: str | None, key: bytes) -> bool:
    """Return whether a daemon accepts what was signed with a key, as Slurm's auth_slurm plugin decides it."""
    if not is_key_set(content):
        return key == content
    keys = {entry["kid"]: base64.urlsafe_b64decode(entry["k"]) for entry in json.loads(content)["keys"]}
    return keys.get(name) == key if name else sign(content)[1] == key


def test_nodes_one_step_apart_accept_each_other() -> None:
    for before, after in pairwise(rotate(OLD)):
        for sender, receiver in ((before, after), (after, before), (before, before), (after, after)):
            assert accepts(receiver, *sign(sender))


def test_after_a_rotation_there_is_one_other_key_and_the_old_one_is_refused() -> None:
    *between, last = rotate(OLD)
    assert not is_key_set(last)
    assert len(last) == KEY_BYTES
    assert last != OLD
    old_names = {name for content in between for name, key in [sign(content)] if key == OLD}
    assert [name for name in (None, *old_names) if accepts(last, name, OLD)] == []
    assert find_next_step(last) == "accept"


def test_every_file_is_one_that_slurm_reads() -> None:
    _, *sets, _ = rotate(OLD)
    for content in sets:
        keys = json.loads(content)["keys"]
        assert [(key["alg"], key["kty"]) for key in keys] == [("HS256", "oct")] * 2
        assert len({key["kid"] for key in keys}) == 2
        assert sum(key.get("use") == "default" for key in keys) == 1


@pytest.mark.parametrize("step", [*STEPS, ""])
def test_a_step_is_taken_once_and_only_when_it_is_next(step: str) -> None:
    for content in rotate(OLD):
        if step != find_next_step(content):
            assert take_step(content, step) == content


def test_two_keys_fit_a_parameter_of_aws() -> None:
    _, *sets, _ = rotate(OLD)
    assert max(len(base64.b64encode(content)) for content in sets) < 4096
