"""The benchmark of a thousand nodes: its configuration is muster's own, and its page has the present limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import Row, render
from benchmarks.scale_cluster import CHANGES, change_conf, choose_address, make_inventory, write_files
from benchmarks.scale_limits import (
    COMMAND_CHARACTERS,
    PAGE,
    RUN_COMMAND_CHARACTERS,
    compute_limits,
    renew_page,
)
from infra.targets.aws import run_command


def test_only_the_named_settings_differ_from_those_of_a_cluster(tmp_path: Path) -> None:
    write_files(tmp_path, make_inventory(3))
    changed = read_settings((tmp_path / "etc/slurm/slurm.conf").read_text())
    assert changed["CommunicationParameters"] == "disable_http,NoInAddrAny"
    original = "NamespaceType=namespace/tmpfs\nCommunicationParameters=disable_http\nTreeWidth=64\n"
    before, after = read_settings(original), read_settings(change_conf(original))
    assert {key for key in before if before[key] != after.get(key)} == set(CHANGES)
    assert read_settings(change_conf("MpiDefault=none\n"))["CommunicationParameters"] == "NoInAddrAny"


def read_settings(conf: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in conf.splitlines() if "=" in line and not line.startswith("#"))


def test_every_node_has_an_address_of_its_own() -> None:
    addresses = {choose_address(number) for number in range(1, 5001)}
    assert len(addresses) == 5000
    assert all(part.isdigit() and int(part) < 256 for address in addresses for part in address.split("."))


def test_limits_are_those_of_the_code() -> None:
    assert run_command._MAX_OUTPUT_CHARACTERS == RUN_COMMAND_CHARACTERS


@pytest.mark.parametrize("nodes", [1, 36, 1000, 5000])
def test_what_run_command_returns_and_accepts_fits(nodes: int) -> None:
    limits = [limit for limit in compute_limits(nodes) if limit.limit in (RUN_COMMAND_CHARACTERS, COMMAND_CHARACTERS)]
    assert len(limits) == 5
    assert [limit.what for limit in limits if not limit.fits] == []


def test_everything_fits_a_thousand_nodes() -> None:
    assert [limit.what for limit in compute_limits(1000) if not limit.fits] == []


def test_the_page_has_the_present_limits() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renew_page(page, [1000, 5000]) == page, "run `python -m benchmarks.scale_limits --write`"
    over = [limit.what for limit in compute_limits(5000) if not limit.fits]
    assert len(over) == page.count("**over**")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("a", 1, 3.0), ""),
        (Row("a", 1, 3.0, 0, 2.0), "FAIL"),
        (Row("a", 1, 1.0, 10, 2.0, 11), "pass"),
        (Row("a", 1, 1.0, 11, 2.0, 11), "FAIL"),
    ],
)
def test_verdicts(row: Row, verdict: str) -> None:
    assert row.verdict == verdict
    assert verdict in render([row])
