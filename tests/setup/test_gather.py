"""Looking changes nothing: the base image is pulled only by a run that is going to use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from setup import base, engine, image
from setup.engine import Engine
from setup.gather import gather
from setup.paths import Paths


@pytest.mark.parametrize(("only_look", "expected"), [(True, "offered"), (False, "pull")])
def test_a_check_does_not_pull_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_look: bool, expected: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(base, "offered", lambda: not asked.append("offered"))
    monkeypatch.setattr(base, "pull", lambda _: not asked.append("pull"))
    monkeypatch.setattr(engine, "look", lambda: Engine("running"))
    monkeypatch.setattr(image, "cached", lambda _: False)
    # A plain user cannot fall back on debootstrap, so only then is it asked at all.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    facts = gather(Paths(tmp_path, tmp_path), ["image"], only_look=only_look)
    assert asked == [expected]
    assert facts.reach == {"base": True}
