"""The cost by the dated table, and by the prices that Nebius's calculator quotes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from infra.targets.cost import Quote
from infra.targets.nebius import client
from infra.targets.nebius.cost import OUTDATED, cost_nebius
from infra.targets.nebius.quote import NOT_QUOTED
from infra.targets.nebius.target import NebiusTarget
from infra.targets.rented.cost import NOT_INCLUDED, UNKNOWN
from muster.commands import cost as command
from muster.commands import screen
from tests.infra.targets.nebius.fake_cloud import FakeCloud
from tests.infra.targets.nebius.profiles import use_profile
from tests.infra.targets.nebius.specs import make_spec, spec_data


def test_lines_by_the_table() -> None:
    cost = cost_nebius(make_spec(login={"enabled": True}))
    assert [(line.part, line.what, line.count, line.usd_per_hour, line.note) for line in cost.lines] == [
        ("nebius.controller", "cpu-d3/8vcpu-32gb", 1, 0.1984, ""),
        ("nebius.login", "cpu-d3/4vcpu-16gb", 1, 0.0992, ""),
        ("nebius.groups.gpu", "gpu-h100-sxm/8gpu-128vcpu-1600gb", 2, 47.2, OUTDATED),
        ("nebius.disk_type", "boot disk NETWORK_SSD, 100 GiB", 2, 0.0, UNKNOWN),
        ("nebius.disk_type", "boot disk NETWORK_SSD, 200 GiB", 2, 0.0, UNKNOWN),
        ("storage.shared", "filesystem NETWORK_SSD, 1024 GiB", 1, 0.0, UNKNOWN),
        ("nebius.public_addresses", "public IPv4 address", 4, 0.0, UNKNOWN),
    ]
    assert cost.not_included == NOT_INCLUDED
    assert [line.open for line in cost.lines] == [False, False, True, True, True, True, True]


def test_the_table_shows_which_prices_are_unknown_or_may_be_wrong() -> None:
    cost = cost_nebius(make_spec())
    console = Console(width=300, file=StringIO())
    console.print(command.build_cost_table(cost))
    cells = [line.split() for line in cast("StringIO", console.file).getvalue().splitlines()]
    rows = {row[0]: row for row in cells if row}
    assert rows["storage.shared"][5:8] == ["1", "?", "?"]
    assert rows["total"][:4] == ["total", "at", "least", f"{cost.usd_per_hour:.2f}"]
    notes = command.list_footnotes(cost)
    assert notes[0].startswith("some prices may be wrong, as their notes say; check them at https://docs.nebius.com")
    assert not any("unverified" in note for note in notes)


def test_preemptible_and_unknown_machines() -> None:
    section = spec_data()["nebius"]
    group = {**section["groups"]["gpu"], "preemptible": True}
    line = cost_nebius(make_spec(nebius={**section, "groups": {"gpu": group}})).lines[1]
    assert (line.what, line.usd_per_hour) == ("gpu-h100-sxm/8gpu-128vcpu-1600gb, preemptible", 20.0)
    group = {**group, "platform": "gpu-new", "preemptible": False}
    line = cost_nebius(make_spec(nebius={**section, "groups": {"gpu": group}})).lines[1]
    assert (line.usd_per_hour, line.note, line.open) == (0.0, UNKNOWN, True)


def estimate(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a calculator: a price by kind of resource."""
    (kind,) = request["resourceSpec"]
    prices = {"computeInstanceSpec": "10.5", "computeDiskSpec": "0.02", "computeFilesystemSpec": "0.25"}
    return {"hourlyCost": {"general": {"total": {"cost": prices[kind]}}}}


def quote() -> Quote:
    return NebiusTarget().quote(make_spec(), screen)


def test_prices_of_today(cloud: FakeCloud) -> None:
    cloud.answers["Calculator/Estimate"] = estimate
    quoted = quote()
    assert quoted.today
    assert "by Nebius's calculator" in quoted.source
    assert [(line.usd_per_hour, line.note) for line in quoted.cost.lines] == [
        *((10.5, ""), (21.0, ""), (0.02, ""), (0.04, ""), (0.25, "")),
        (0.0, NOT_QUOTED),
    ]


def test_the_table_is_used_without_a_login_and_without_an_answer(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server has no answer for the calculator.
    quoted = quote()
    assert (quoted.today, quoted.cost) == (False, cost_nebius(make_spec()))
    assert "today's could not be read (nebius.project: " in quoted.source
    monkeypatch.setattr(client, "has_credentials", lambda: False)
    assert quote().source == "instance prices of 2026-05-18; today's are asked for only with a login to Nebius"


def test_the_table_is_used_if_the_login_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_profile(tmp_path, monkeypatch, "profiles: {dev: {}}")
    quoted = quote()
    assert (quoted.today, quoted.cost) == (False, cost_nebius(make_spec()))
    assert "could not be read (nebius.project: the login to Nebius does not work: Missing auth-type" in quoted.source
