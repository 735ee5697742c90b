"""The running bill: only what is billed at the time, and shortened delays in full."""

from __future__ import annotations

import pytest

from cluster.catalog.prices import service_price
from infra.targets.aws.rehearse.bill import compute_bill, rate_at, read_bill
from infra.targets.aws.rehearse.billed_prices import price_resource
from infra.targets.aws.rehearse.timeline import Event, ShortenedTime
from tests.infra.targets.aws.build.capture import ROOT, read

EVENTS = [
    Event(10, "gpu-1", "pending"), Event(20, "gpu-1", "boots"), Event(30, "gpu-1", "ready"),
    Event(50, "gpu-1", "shutting down"), Event(60, "gpu-1", "terminated"),
]  # fmt: skip
PRICES = {"gpu-1": 36.0}  # A cent per second.


def test_a_machine_is_billed_from_its_boot_until_it_shuts_down() -> None:
    assert [rate_at(EVENTS, PRICES, at_s) for at_s in (5, 15, 25, 49, 55, 65)] == [0, 0, 36, 36, 0, 0]
    bill = compute_bill(EVENTS, PRICES, [], 20, 100)
    assert bill[0] == (0, 0)
    assert bill[-1] == (100, pytest.approx(0.30))
    assert read_bill(bill, 25) == pytest.approx(0.05)
    assert [usd for _, usd in bill] == sorted(usd for _, usd in bill)


def test_shortened_seconds_count_in_full_once_and_in_part_by_their_share() -> None:
    overlapping = [ShortenedTime(20, 30), ShortenedTime(25, 30)]
    assert compute_bill(EVENTS, PRICES, overlapping, 20, 100)[-1][1] == pytest.approx(0.01 * (10 * 20 + 20))
    half = [ShortenedTime(30, 50, share=0.5)]
    assert compute_bill(EVENTS, PRICES, half, 21, 100)[-1][1] == pytest.approx(0.01 * (10 + 20 * 11))


def test_gateways_and_lustre_have_the_prices_of_the_table() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")
    gateway = service_price("nat-gateway").usd_per_hour + service_price("public-ipv4").usd_per_hour
    assert price_resource(spec, "NAT gateway us-east-1a") == gateway
    (lustre,) = [name for name, entry in spec.storage.items() if entry.kind == "fsx-lustre"]
    assert price_resource(spec, f"FSx filesystem muster-{spec.name}-{lustre}") > gateway
    assert price_resource(spec, "EFS mount target muster-demo-home us-east-1a") == 0
