"""The field `hosts.switches`: the place of each node, and the rules with their exact messages."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.hosts.switches import place_nodes
from infra.validate import validate
from tests.infra.targets.hosts.specs import changed, load, section_of

LEAVES = {"leaf1": {"match": ["rack1-1"]}, "leaf2": {"match": ["rack1-2"]}}


def switched(**switches: Any) -> dict[str, Any]:
    return changed("hosts", "switches", value=switches)


def test_nodes_are_under_the_switch_whose_pattern_matches_their_host() -> None:
    assert place_nodes(section_of(load())) == {}
    assert place_nodes(section_of(load(switched(**LEAVES)))) == {"gpu-1": ("leaf1",), "gpu-2": ("leaf2",)}
    pods = switched(leaf1={"match": ["*-1"], "spine": "pod1"}, leaf2={"match": ["head", "rack1-2"]})
    assert place_nodes(section_of(load(pods))) == {"gpu-1": ("pod1", "leaf1"), "gpu-2": ("leaf2",)}


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        (LEAVES, []),
        (
            {"leaf1": {"match": ["rack1-*"]}, "leaf2": {"match": ["rack1-2"]}},
            [
                (
                    "error",
                    "host_switches",
                    "hosts.machines.rack1-2",
                    "is under more than one leaf switch: leaf1 and leaf2; allowed: one",
                    "narrow the patterns of `hosts.switches`; hosts with ports on the same switches are one entry",
                )
            ],
        ),
        (
            {"leaf1": {"match": ["rack1-1", "rack2-*"]}},
            [
                (
                    "error",
                    "empty_pattern",
                    "hosts.switches.leaf1.match[1]",
                    "'rack2-*' matches none of the compute hosts rack1-1, rack1-2",
                    "write `rack1-2`, or remove it",
                ),
                (
                    "warning",
                    "host_unplaced",
                    "hosts.switches",
                    "no switch is given for rack1-2, so jobs that also use other hosts count as crossing switches",
                    "add a switch whose `match` has them",
                ),
            ],
        ),
        (
            {"unplaced": {"match": ["rack1-1"]}, "leaf2": {"match": ["rack1-2"], "spine": "all"}},
            [
                (
                    "error",
                    "switch_name",
                    "hosts.switches.unplaced",
                    "'unplaced' is the switch above all others, or that of hosts without one; allowed: another name",
                    "rename it, for example to `unplaced-1`",
                ),
                (
                    "error",
                    "switch_name",
                    "hosts.switches.leaf2.spine",
                    "'all' is the switch above all others, or that of hosts without one; allowed: another name",
                    "rename it, for example to `all-1`",
                ),
            ],
        ),
        (
            LEAVES | {"leaf2": {"match": ["rack1-2"], "spine": "leaf1"}},
            [
                (
                    "error",
                    "switch_name",
                    "hosts.switches.leaf2.spine",
                    "'leaf1' is a leaf switch with hosts of its own; allowed: a name that is not in `switches`",
                    "rename one of the two, for example to `spine: spine-leaf1`",
                )
            ],
        ),
    ],
)
def test_rules(switches: dict[str, Any], expected: list[tuple[str, str, str, str, str]]) -> None:
    issues = validate(load(switched(**switches)))
    assert [(i.level, i.code, i.where, i.message, i.fix) for i in issues] == expected
