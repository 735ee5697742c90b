"""The bandwidth that the fabric job expects: published where comparable, otherwise derived from the network cards."""

from __future__ import annotations

import pytest

from cluster.catalog.bandwidth import GIB, expected_busbw, minimum_busbw
from cluster.catalog.instances import all_types, instance
from infra.targets.registry import plan_of as plan
from tests.infra.targets.aws.specs import group, spec
from trainer import bandwidth as measured


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("p4d.24xlarge", 75.0),
        ("p5.48xlarge", 437.0),
        ("p6-b200.48xlarge", 367.0),
        # Published for 16 GiB only, or not at all: half the bandwidth of the cards.
        ("p6-b300.48xlarge", 400.0),
        ("p5e.48xlarge", 200.0),
        ("p5en.48xlarge", 200.0),
        ("g6.8xlarge", 1.5625),
        # Several GPUs on PCIe: the network is slower than PCIe in the first and faster in the second.
        ("g6.12xlarge", 2.5),
        ("g6e.48xlarge", 3.0),
        ("g6.xlarge", None),
        ("m7i.48xlarge", None),
    ],
)
def test_expected_bandwidth_at_1_gib(name: str, gb_per_s: float | None) -> None:
    assert expected_busbw(instance(name)).get(GIB) == gb_per_s
    assert max(measured.SIZES + measured.LARGE) == GIB


def test_the_lower_bound_is_far_below_published_figures() -> None:
    """A higher bound would drain healthy machines."""
    for machine in all_types().values():
        for row in machine.busbw:
            if row.size >= GIB:
                assert (minimum_busbw(machine) or 0.0) < 0.7 * row.gb_per_s, (machine.name, row)


def test_every_gpu_machine_with_efa_has_an_expected_bandwidth() -> None:
    types = [machine for machine in all_types().values() if machine.efa_interfaces and machine.gpus.count]
    assert [machine.name for machine in types if GIB not in expected_busbw(machine)] == []


def test_node_sets_have_the_expected_bandwidth() -> None:
    (nodes,) = plan(spec(groups=group(instance_type="p5en.48xlarge", fabric="efa"))).sets
    assert nodes.busbw == {GIB: 200.0}
    (slow,) = plan(spec(groups=group(instance_type="p5en.48xlarge", fabric="tcp"))).sets
    assert slow.busbw == {}
