"""The cost estimate on AWS: each line, the total, minimum and maximum, and notes on missing prices."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from cluster.catalog.prices import HOURS_PER_MONTH, instance_price, service_price
from infra.targets.aws.cost import cost
from infra.targets.aws.plan import launch_template, machines
from infra.targets.aws.spec import aws_section
from infra.targets.cost import Cost, Line
from infra.targets.registry import read_spec as read
from muster.commands import cost as command
from tests.infra.targets.aws.specs import group, spec
from tests.muster.test_commands_screen import render

STACKS = Path(__file__).parents[4] / "stacks"
FULL = read(STACKS / "Pulumi.aws-full.yaml")


def usd(name: str, region: str = "us-east-1", *, spot: bool = False) -> float:
    price = instance_price(name, region, spot=spot)
    assert price is not None
    return price.usd


def lines(priced: Cost, part: str) -> list[Line]:
    return [line for line in priced.lines if line.part == part]


def test_the_lines_add_up() -> None:
    priced = cost(FULL)
    assert priced.usd_per_hour == pytest.approx(sum(line.usd_per_hour for line in priced.lines))
    assert priced.usd_per_month == pytest.approx(priced.usd_per_hour * 730)
    assert priced.usd_per_hour_min < priced.usd_per_hour


def test_every_part_of_the_spec_has_a_line() -> None:
    parts = {"controller", "login", "groups.burst", "groups.h200", "network", "aws"}
    assert {line.part for line in cost(FULL).lines} == parts | {f"storage.{name}" for name in FULL.storage}


def test_static_nodes_and_their_volumes() -> None:
    nodes, volumes = lines(cost(spec()), "groups.gpu")
    assert (nodes.count, nodes.what, nodes.note) == (2, "p5.48xlarge, on-demand", "")
    assert nodes.usd_per_hour == nodes.least == 2 * usd("p5.48xlarge")
    gp3 = 80 * launch_template.ROOT_GB / 1000
    extra = 0.005 * (launch_template.ROOT_IOPS - 3000) + 0.04 * (launch_template.ROOT_MBS - 125)
    assert volumes.usd_per_hour == pytest.approx(2 * (gp3 + extra) / HOURS_PER_MONTH)


def test_autoscaled_nodes_have_a_minimum_and_a_maximum() -> None:
    nodes, volumes = lines(cost(FULL), "groups.burst")
    assert (nodes.count_min, nodes.count, nodes.what) == (0, 16, "g6.8xlarge or g6.16xlarge, spot, then on-demand")
    assert (nodes.least, nodes.usd_per_hour) == (0, pytest.approx(16 * usd("g6.16xlarge")))
    first = f"only g6.8xlarge: {16 * usd('g6.8xlarge'):.2f}"
    assert nodes.note == f"{first}; spot prices change, up to the on-demand price"
    assert (volumes.least, volumes.count) == (0, 16)


def test_the_minimum_is_the_cheapest_purchase_of_the_fewest_nodes() -> None:
    bought = spec(groups={"gpu": {"instance_type": "p5.48xlarge", "min": 2, "max": 4, "capacity": {"kind": "spot"}}})
    (nodes, _) = lines(cost(bought), "groups.gpu")
    assert nodes.least == pytest.approx(2 * usd("p5.48xlarge", spot=True))
    # A spot price may rise to the on-demand price, so budgets are checked against that.
    assert nodes.usd_per_hour == pytest.approx(4 * usd("p5.48xlarge"))


def test_several_types_cost_at_most_the_dearest_and_the_note_has_the_first() -> None:
    mixed = group(instance_type="g6.8xlarge", capacity={"fallback_types": ["g6.16xlarge"]})
    nodes, _ = lines(cost(spec(groups=mixed)), "groups.gpu")
    first, dearest = usd("g6.8xlarge"), usd("g6.16xlarge")
    assert nodes.what == "g6.8xlarge or g6.16xlarge, on-demand"
    assert (nodes.least, nodes.usd_per_hour) == (pytest.approx(2 * first), pytest.approx(2 * dearest))
    assert nodes.note == f"only g6.8xlarge: {2 * first:.2f}"


def test_a_capacity_block_was_paid_in_advance() -> None:
    block = group(fabric="efa", capacity={"kind": "block", "reservation": "cr-0123456789abcdef0"})
    nodes, _ = lines(cost(spec(groups=block)), "groups.gpu")
    assert (nodes.usd_per_hour, nodes.note) == (0, "the block was paid in advance")
    assert cost(spec(groups=block)).unpriced == ()


def test_lustre_is_priced_by_size_and_throughput() -> None:
    small = spec(storage={"shared": {"kind": "fsx-lustre", "size_gb": 1200, "throughput": 125}})
    (line,) = lines(cost(small), "storage.shared")
    assert line.usd_per_hour == pytest.approx(1200 * service_price("fsx-lustre-125").usd / 730)
    assert (line.what, line.note) == ("FSx for Lustre, 1200 GB at 125 MB/s per TiB", "")


def test_efs_is_charged_by_what_is_stored_and_transferred() -> None:
    (line,) = lines(cost(spec(storage={"shared": {"kind": "efs"}})), "storage.shared")
    assert (line.what, line.usd_per_hour) == ("EFS", 0)
    assert line.note == "0.30 USD per GB and month of what is stored, 0.03 per GB read, 0.06 per GB written"


def test_backups_have_a_line_with_their_price() -> None:
    storage = {"shared": {"kind": "fsx-lustre", "backup_days": 7}, "home": {"kind": "efs", "mount": "/users"}}
    plain = {"shared": {"kind": "fsx-lustre"}, "home": {"kind": "efs", "mount": "/users"}}
    without, with_backups = (
        cost(spec(storage=plain)),
        cost(spec(storage=storage, aws={"region": "us-east-1", "state_backup_days": 14})),
    )
    added = [line for line in with_backups.lines if line not in without.lines]
    assert [(line.part, line.what, line.usd_per_hour) for line in added] == [
        ("controller", "daily snapshots, kept for 14 days", 0.0),
        ("storage.shared", "daily backups, kept for 7 days", 0.0),
    ]
    assert {line.note for line in added} == {"0.05 USD per GB and month of what is stored"}


def test_an_unverified_price_is_marked() -> None:
    (line,) = lines(cost(spec(storage={"shared": {"kind": "fsx-lustre", "throughput": 1000}})), "storage.shared")
    assert (line.note, line.open) == ("unverified", True)


def test_existing_networks_and_filesystems_cost_nothing() -> None:
    guest = read(STACKS / "Pulumi.aws-existing-vpc.yaml")
    assert [line.note for line in cost(guest).lines if line.part in ("network", "storage.shared")] == [
        "already paid for",
        "already paid for",
    ]


def test_a_nat_gateway_is_priced_only_with_egress() -> None:
    open_, closed = cost(spec()), cost(spec(network={"egress": False}))
    assert any("NAT" in line.what for line in open_.lines)
    assert not any("NAT" in line.what for line in closed.lines)


def test_endpoints_are_priced_in_every_zone() -> None:
    (line,) = [line for line in cost(FULL).lines if line.what == "private endpoints"]
    section = aws_section(FULL)
    assert section
    assert line.count == 2 * len(section.zones)


def test_an_existing_key_costs_nothing() -> None:
    assert any(line.what == "encryption key" for line in cost(spec()).lines)
    assert not any(line.what == "encryption key" for line in cost(FULL).lines)


def test_instances_have_prices_of_their_region_and_other_lines_a_note() -> None:
    priced = cost(spec(aws={"region": "ap-northeast-1"}))
    nodes, volumes = lines(priced, "groups.gpu")
    assert nodes.usd_per_hour == pytest.approx(2 * usd("p5.48xlarge", "ap-northeast-1"))
    assert volumes.note == "price of us-east-1, unverified"


def test_an_unknown_price_is_listed_as_unpriced() -> None:
    priced = cost(spec(aws={"region": "us-east-2"}, groups=group(instance_type="p5e.48xlarge", fabric="efa")))
    (unknown,) = priced.unpriced
    assert (unknown.what, unknown.note) == ("p5e.48xlarge, on-demand", "no price known in us-east-2")


def test_controller_and_login_have_volumes() -> None:
    machine, volumes = lines(cost(spec()), "controller")
    assert (machine.what, machine.usd_per_hour) == ("m7i.xlarge", usd("m7i.xlarge"))
    assert volumes.what == f"volumes, {machines.FIXED_ROOT_GB + machines.STATE_GB} GB gp3"
    assert lines(cost(spec(login={"enabled": False})), "login") == []


def test_the_table_fits_into_100_columns() -> None:
    text = render(command.build_cost_table(cost(FULL)))
    for cell in ("groups.burst", "0 to 16", "0.00 to 54.35", "USD per month", "total", "storage.shared"):
        assert cell in text
    assert "…" not in text


def test_notes_are_below_a_table_that_is_too_wide() -> None:
    table, notes = command.lay_out_cost_table(cost(FULL), Console(width=80))
    narrow = render(table, 80)
    assert "…" not in narrow
    assert "note" not in narrow.splitlines()[0]
    home = "storage.home (EFS): 0.30 USD per GB and month of what is stored, 0.03 per GB read, 0.06 per GB written"
    assert home in notes
    (unverified,) = (note for note in notes if note.endswith(": unverified"))
    assert unverified.startswith("controller (volumes, 150 GB gp3), login (volume, 100 GB gp3), groups.burst (volume")
    table, notes = command.lay_out_cost_table(cost(FULL), Console(width=200))
    assert render(table, 200).splitlines()[0].split()[-1] == "note"
    assert notes == []


def test_footnotes_list_what_is_not_in_the_total() -> None:
    notes = command.list_footnotes(cost(FULL))
    assert notes[0] == "unverified: prices from experience, not looked up; check them at aws.amazon.com/pricing"
    assert notes[-1].startswith("not included: data that leaves AWS")
    unknown = spec(aws={"region": "us-east-2"}, groups=group(instance_type="p5e.48xlarge"))
    footnote = "not in the total, without a known price: p5e.48xlarge, on-demand"
    assert command.list_footnotes(cost(unknown))[1] == footnote


def test_describe_cost_is_one_sentence() -> None:
    priced = cost(FULL)
    expected = f"{priced.usd_per_hour_min:.2f} to {priced.usd_per_hour:.2f} USD per hour on target aws"
    assert command.describe_cost(FULL) == expected
    assert command.describe_cost(spec(groups=group())).count(" to ") == 0
    unknown = spec(aws={"region": "us-east-2"}, groups=group(instance_type="p5e.48xlarge"))
    assert command.describe_cost(unknown).startswith("at least ")


def test_a_larger_root_disk_costs_more() -> None:
    default = {line.what: line for line in cost(spec()).lines if line.part == "groups.gpu"}
    larger = {line.what: line for line in cost(spec(groups=group(root_gb=1000))).lines if line.part == "groups.gpu"}
    before, after = default["volume, 200 GB gp3 each"], larger["volume, 1000 GB gp3 each"]
    per_gb = service_price("ebs-gp3").usd_per_hour
    assert after.usd_per_hour - before.usd_per_hour == pytest.approx(2 * 800 * per_gb)
