"""The interface planner: layouts as AWS documents them, and EC2's rules for all of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from cluster.catalog.instances import InstanceType, all_types, instance
from infra.targets.aws.launcher.fleet import Interface
from infra.targets.aws.plan.interfaces import NoEfa, addresses, interfaces

GOLDEN = Path(__file__).parents[4] / "golden" / "interfaces"
WITH_EFA = [type_ for type_ in all_types().values() if type_.efa_interfaces]


def layout(name: str, *, ip_bandwidth: bool = False) -> list[tuple[int, int, str]]:
    return [(i.card, i.device, i.kind) for i in interfaces(instance(name), "efa", ip_bandwidth=ip_bandwidth)]


@pytest.mark.parametrize(
    ("name", "cards"), [("p4d", 4), ("p4de", 4), ("p5", 32), ("p5e", 32), ("p5en", 16), ("p6-b200", 8)]
)
def test_many_cards_have_one_address(name: str, cards: int) -> None:
    size = "24xlarge" if name.startswith("p4") else "48xlarge"
    further = [(card, 0, "efa-only") for card in range(1, cards)]
    assert layout(f"{name}.{size}") == [(0, 0, "interface"), (0, 1, "efa-only"), *further]
    assert addresses(instance(f"{name}.{size}"), "efa") == 1


def test_the_first_card_of_p6_b300_has_no_efa() -> None:
    assert layout("p6-b300.48xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))]


def test_p6e_gb200_has_an_efa_for_each_gpu() -> None:
    """The layout that the EC2 user guide recommends for 1,600 Gb/s of EFA."""
    assert layout("p6e-gb200.36xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in (1, 5, 9, 13))]
    assert addresses(instance("p6e-gb200.36xlarge"), "efa") == 1


@pytest.mark.parametrize("name", ["g5.8xlarge", "g6.48xlarge", "g6e.12xlarge", "g7e.8xlarge", "p5.4xlarge"])
def test_one_card_has_one_interface(name: str) -> None:
    assert layout(name) == [(0, 0, "efa")]


def test_p5_with_more_ip_bandwidth_has_eight_addresses() -> None:
    planned = layout("p5.48xlarge", ip_bandwidth=True)
    assert [(card, device) for card, device, kind in planned if kind == "interface"] == [
        (0, 0),
        *((card, 1) for card in range(4, 32, 4)),
    ]
    assert addresses(instance("p5.48xlarge"), "efa", ip_bandwidth=True) == 8


@pytest.mark.parametrize("name", ["p5.48xlarge", "g6.xlarge", "m7i.large"])
def test_without_efa_there_is_one_plain_interface(name: str) -> None:
    assert interfaces(instance(name), "tcp", ip_bandwidth=True) == (Interface(0, 0, "interface"),)


def test_efa_on_a_type_without_it_is_an_error() -> None:
    with pytest.raises(NoEfa, match=r"g6\.xlarge has no EFA"):
        interfaces(instance("g6.xlarge"), "efa")


@pytest.mark.parametrize("type_", WITH_EFA, ids=lambda type_: type_.name)
@pytest.mark.parametrize("ip_bandwidth", [False, True], ids=["few-addresses", "ip-bandwidth"])
def test_every_layout_follows_the_rules_of_ec2(type_: InstanceType, ip_bandwidth: bool) -> None:
    planned = interfaces(type_, "efa", ip_bandwidth=ip_bandwidth)
    places = [(i.card, i.device) for i in planned]
    cards = {card.index: card for card in type_.network_cards}
    assert len(places) == len(set(places))
    assert places.count((0, 0)) == 1
    assert places[0] == (0, 0)
    assert planned[0].kind in ("interface", "efa")
    for card, count in Counter(i.card for i in planned).items():
        assert count <= cards[card].interfaces
        assert sorted(device for c, device in places if c == card) == list(range(count))
    efa = [i.card for i in planned if i.kind != "interface"]
    assert len(efa) == len(set(efa)) == type_.efa_interfaces
    assert all(cards[card].efa for card in efa)


@pytest.mark.parametrize("type_", WITH_EFA, ids=lambda type_: type_.name)
def test_every_type_with_efa_has_a_golden_copy(type_: InstanceType) -> None:
    golden = json.loads((GOLDEN / f"{type_.name}.json").read_text())
    assert [(i["card"], i["device"], i["kind"]) for i in golden["efa"]] == layout(type_.name)
