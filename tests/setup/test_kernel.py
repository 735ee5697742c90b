"""Limits are raised where they are too low, once, and never lowered."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import kernel
from setup.paths import Paths
from tests.setup.machine import READY

HIGHEST = "net/ipv4/neigh/default/gc_thresh3"


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    """A kernel that allows exactly what is needed."""
    for name, needed in kernel.NEEDED.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{needed}\n")
    return tmp_path / "sys"


@pytest.mark.parametrize("name", kernel.NEEDED)
@pytest.mark.parametrize(("part", "cached"), [(0.1, False), (1, True), (100, True)])
def test_each_limit_ends_up_high_enough(sysctls: Path, name: str, part: float, cached: bool) -> None:
    limit, needed = sysctls / name, kernel.NEEDED[name]
    limit.write_text(f"{int(needed * part)}\n")
    assert kernel.cached(sysctls) is cached
    _act(sysctls)
    assert int(limit.read_text()) == max(needed, int(needed * part))
    assert kernel.cached(sysctls)


def test_what_is_raised_stands_in_the_log(sysctls: Path) -> None:
    (sysctls / HIGHEST).write_text("1024\n")
    assert _act(sysctls) == f"{HIGHEST}: 1024 -> 16384\n"


def test_a_machine_without_the_limits_is_left_alone(tmp_path: Path) -> None:
    assert kernel.cached(tmp_path / "none")


def test_a_limit_that_the_kernel_refuses_is_no_failure(sysctls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: str) -> int:
        raise PermissionError(1, "Operation not permitted", str(path))

    (sysctls / HIGHEST).write_text("1024\n")
    monkeypatch.setattr(Path, "write_text", refuse)
    assert f"{HIGHEST}: left as it is ([Errno 1] Operation not permitted" in _act(sysctls)


def test_the_table_of_neighbours_holds_the_largest_cluster_that_is_tested() -> None:
    """34 nodes, each with an entry for every other one; the lower thresholds stay below the hard one."""
    low, soft, hard = (kernel.NEEDED[f"net/ipv4/neigh/default/gc_thresh{number}"] for number in (1, 2, 3))
    assert 34 * 33 < low < soft < hard


def _act(sysctls: Path) -> str:
    log = sysctls.parent / "kernel.log"
    kernel.act(Paths(sysctls, sysctls), READY, log, sysctls)
    return log.read_text()
