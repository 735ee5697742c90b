"""A bad section does not hide the issues of other sections, and causes no additional issues."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec.issue import SpecError
from infra.targets.registry import load_spec as load
from infra.validate.partial import validate_readable

GOOD: dict[str, Any] = {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}}

TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "bad time and range next to a typo in a group": (
        {
            "groups": {"gpu": {"cuont": 2}},
            "slurm": {"default_time": "banana"},
            "network": {"cidr": "10.300.0.0/24"},
        },
        ["network.cidr", "slurm.default_time"],
    ),
    "default group is not checked if the groups cannot be read": (
        {"groups": {"gpu": {"count": "two"}}, "slurm": {"default_group": "gpu"}},
        [],
    ),
    "rules skip a section that cannot be read": (
        {"slurm": {"default_time": "banana", "kill_wait": 3}},
        [],
    ),
    "no rules apply to an unknown target": (
        {"target": "moon", "slurm": {"default_time": "banana"}},
        [],
    ),
    "unknown top-level key hides nothing": (
        {"gruops": {}, "slurm": {"default_time": "banana"}},
        ["slurm.default_time"],
    ),
    "unreadable name hides nothing": (
        {"name": 7, "budget": {"usd_per_hour": 10, "usd_total": 5}},
        ["budget.usd_total"],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_readable_sections_are_validated(case: str) -> None:
    changes, expected = TABLE[case]
    data = GOOD | changes
    with pytest.raises(SpecError) as bad:
        load(data)
    assert sorted(issue.where for issue in validate_readable(data, bad.value.issues)) == expected


@pytest.mark.parametrize("data", [None, 7, [], "text"])
def test_data_that_is_not_a_mapping_has_no_readable_sections(data: Any) -> None:
    assert validate_readable(data, []) == []
