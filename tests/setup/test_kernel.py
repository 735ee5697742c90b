"""Kernel limits that are too low are raised once, and no limit is lowered."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import engine
from setup.paths import Paths
from tests.setup.machine import READY

HIGHEST = "net/ipv4/neigh/default/gc_thresh3"


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    """Write the limits of a kernel that allows exactly the required values."""
    for name, needed in engine.LIMITS.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{needed}\n")
    return tmp_path / "sys"


@pytest.mark.parametrize("name", engine.LIMITS)
@pytest.mark.parametrize(("part", "cached"), [(0.1, False), (1, True), (100, True)])
def test_each_limit_is_raised_to_its_minimum(sysctls: Path, name: str, part: float, cached: bool) -> None:
    limit, needed = sysctls / name, engine.LIMITS[name]
    limit.write_text(f"{int(needed * part)}\n")
    assert engine.limits_are_raised(sysctls) is cached
    _raise_limits(sysctls)
    assert int(limit.read_text()) == max(needed, int(needed * part))
    assert engine.limits_are_raised(sysctls)


def test_raised_limits_are_logged(sysctls: Path) -> None:
    (sysctls / HIGHEST).write_text("1024\n")
    assert _raise_limits(sysctls) == f"{HIGHEST}: 1024 -> 16384\n"


def test_a_kernel_without_the_limits_needs_nothing(tmp_path: Path) -> None:
    assert engine.limits_are_raised(tmp_path / "none")


def test_a_limit_that_cannot_be_written_is_skipped(sysctls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: str) -> int:
        raise PermissionError(1, "Operation not permitted", str(path))

    (sysctls / HIGHEST).write_text("1024\n")
    monkeypatch.setattr(Path, "write_text", refuse)
    assert f"{HIGHEST}: not changed ([Errno 1] Operation not permitted" in _raise_limits(sysctls)


def test_the_neighbour_table_holds_the_largest_tested_cluster() -> None:
    """34 nodes, each with an entry for every other node; the soft thresholds stay below the hard one."""
    low, soft, hard = (engine.LIMITS[f"net/ipv4/neigh/default/gc_thresh{number}"] for number in (1, 2, 3))
    assert 34 * 33 < low < soft < hard


def _raise_limits(sysctls: Path) -> str:
    log = sysctls.parent / "kernel.log"
    engine.raise_limits(Paths(sysctls, sysctls), READY, log, sysctls)
    return log.read_text()
