"""`setup --check` changes nothing: the base image is pulled only by a run that uses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from setup import engine, image
from setup.facts import Engine
from setup.gather import gather
from setup.paths import Paths


@pytest.mark.parametrize(("only_look", "expected"), [(True, "can_pull_base"), (False, "pull_base")])
def test_a_check_does_not_pull_the_base_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_look: bool, expected: str
) -> None:
    calls: list[str] = []

    def record(name: str) -> bool:
        calls.append(name)
        return True

    monkeypatch.setattr(image, "can_pull_base", lambda: record("can_pull_base"))
    monkeypatch.setattr(image, "pull_base", lambda _: record("pull_base"))
    monkeypatch.setattr(engine, "inspect_engine", lambda: Engine("running"))
    monkeypatch.setattr(image, "is_current", lambda _: False)
    # Without root there is no fallback to debootstrap, so the base is probed.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    facts = gather(Paths(tmp_path, tmp_path), ["image"], only_look=only_look)
    assert calls == [expected]
    assert facts.reach == {"base": True}
