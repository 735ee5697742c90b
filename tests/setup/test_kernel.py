"""The limit is raised where it is too low, once, and never lowered."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import kernel
from setup.paths import Paths
from tests.setup.machine import READY


@pytest.mark.parametrize(("before", "after"), [(128, kernel.NEEDED), (kernel.NEEDED, kernel.NEEDED), (65536, 65536)])
def test_the_limit_ends_up_high_enough(tmp_path: Path, before: int, after: int) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text(f"{before}\n")
    if not kernel.cached(limit):
        kernel.act(Paths(tmp_path, tmp_path), READY, tmp_path / "kernel.log", limit)
    assert int(limit.read_text()) == after
    assert kernel.cached(limit)


def test_a_machine_without_the_limit_is_left_alone(tmp_path: Path) -> None:
    assert kernel.cached(tmp_path / "none")
