"""The instance catalog: generated fields, reviewed fields, and types that are rejected."""

from __future__ import annotations

import json

import pytest

from cluster.catalog import instances, refresh
from cluster.catalog.instances import DATA, Card, Gpus, UnknownInstanceType, UnverifiedInstanceType, all_types, instance

GPU_TYPES = [name for name, machine in all_types().items() if machine.gpus.count]


def test_the_committed_file_equals_the_generated_one() -> None:
    text = (DATA / "instances.json").read_text()
    assert text == refresh.render_instances(json.loads(text)["date"]), (
        "run `python -m cluster.catalog.refresh instances DATE`"
    )


def test_all_fields_of_one_type() -> None:
    machine = instance("p5.48xlarge")
    assert (machine.family, machine.vcpus, machine.cores, machine.sockets) == ("p5", 192, 96, 2)
    assert machine.memory_mb == 2048 * 1024
    assert machine.gpus == Gpus(8, "h100", "H100", 81920)
    assert machine.network_cards == tuple(Card(index, 2, True, 100.0) for index in range(32))
    assert (machine.efa_interfaces, machine.efa_generation, machine.nvlink, machine.ip_every) == (32, 2, 4, 4)
    assert machine.instance_store == (8, 3800)
    assert machine.architecture == "x86_64"
    assert machine.purchases == {"on-demand", "spot", "reservation", "block"}
    assert not machine.auto_recovery
    assert "us-east-1" in machine.regions
    assert "eu-west-3" not in machine.regions
    assert [(b.nodes, b.size, b.gb_per_s) for b in machine.busbw][-1] == (2, 16 * 2**30, 487)


def test_the_first_card_of_p6_b300_has_no_efa() -> None:
    cards = instance("p6-b300.48xlarge").network_cards
    assert [card.efa for card in cards] == [False, *[True] * 16]
    assert (cards[0].gbps, cards[1].gbps) == (350.0, 400.0)


@pytest.mark.parametrize(
    ("name", "count", "memory_gib", "efa"),
    [
        ("p4d.24xlarge", 8, 1152, 4),
        ("p4de.24xlarge", 8, 1152, 4),
        ("p5.4xlarge", 1, 256, 1),
        ("p5e.48xlarge", 8, 2048, 32),
        ("p5en.48xlarge", 8, 2048, 16),
        ("p6-b200.48xlarge", 8, 2048, 8),
        ("p6-b300.48xlarge", 8, 4096, 16),
        ("p6e-gb200.36xlarge", 4, 960, 4),
        ("g5.8xlarge", 1, 128, 1),
        ("g6.8xlarge", 1, 128, 1),
        ("g6.4xlarge", 1, 64, 0),
        ("g6e.24xlarge", 4, 768, 2),
        ("g6e.48xlarge", 8, 1536, 4),
        ("g7.48xlarge", 8, 768, 2),
        ("g7e.48xlarge", 8, 2048, 4),
        ("gr6.8xlarge", 1, 256, 1),
    ],
)
def test_gpus_memory_and_efa(name: str, count: int, memory_gib: int, efa: int) -> None:
    machine = instance(name)
    assert (machine.gpus.count, machine.memory_mb, machine.efa_interfaces) == (count, memory_gib * 1024, efa)


@pytest.mark.parametrize("name", GPU_TYPES)
def test_every_gpu_has_a_valid_name_in_slurm(name: str) -> None:
    assert instance(name).gpus.type.isalnum()
    assert instance(name).gpus.type == instance(name).gpus.type.lower()


@pytest.mark.parametrize("name", GPU_TYPES)
def test_efa_cards_and_efa_interfaces_agree(name: str) -> None:
    machine = instance(name)
    assert machine.efa_interfaces == sum(card.efa for card in machine.network_cards)


def test_trainium_has_chips_and_no_gpus() -> None:
    machine = instance("trn1.32xlarge")
    assert (machine.neuron, machine.gpus.count, machine.efa_interfaces) == (16, 0, 8)


def test_architectures() -> None:
    assert instance("m7g.large").architecture == "arm64"
    assert instance("m7i.large").architecture == "x86_64"


def test_an_unknown_type_is_reported_with_similar_names() -> None:
    with pytest.raises(UnknownInstanceType) as bad:
        instance("p5en.48xlareg")
    assert bad.value.nearest[0] == "p5en.48xlarge"
    with pytest.raises(UnknownInstanceType, match="nearest: none"):
        instance("???")


def test_an_unverified_type_is_rejected_with_the_reason() -> None:
    with pytest.raises(UnverifiedInstanceType, match="AWS describes it without accelerators"):
        instance("trn2u.48xlarge")


def test_documented_types_are_not_in_the_generated_file() -> None:
    """Once moto has such a type, its entry there replaces the one written by hand."""
    generated = json.loads((DATA / "instances.json").read_text())["types"]
    assert not set(instances._reviewed()["documented"]) & set(generated)


def test_an_ultraserver_has_arm_machines_with_an_efa_for_each_gpu() -> None:
    """Numbers of the EC2 user guide, efa-acc-inst-types.html: 1,600 Gb/s over cards 1, 5, 9 and 13."""
    machine = instance("p6e-gb200.36xlarge")
    assert (machine.ultraserver, machine.architecture, machine.purchases) == (18, "arm64", {"block"})
    assert len(machine.network_cards) == 17
    assert {card.index: card.gbps for card in machine.network_cards if card.efa} == dict.fromkeys((1, 5, 9, 13), 400.0)
    assert instance("p6-b200.48xlarge").ultraserver == 0


def test_families_that_only_aws_describes_have_a_caveat_and_no_type() -> None:
    """Once the catalog has a type of such a family, its facts belong under `families:`."""
    families = {machine.family for machine in all_types().values()}
    described = instances._reviewed()["described"]
    assert not set(described) & (families | set(instances._reviewed()["families"]))
    assert all(instances.read_caveat(family) for family in described)
    assert instances.read_caveat("p5") == ""


def test_reviewed_families_exist() -> None:
    families = {machine.family for machine in all_types().values()}
    assert set(instances._reviewed()["families"]) <= families
    assert set(instances._reviewed()["busbw"]) <= set(all_types())
    assert not set(instances.unverified()) & set(all_types())
