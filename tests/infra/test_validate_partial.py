"""One bad section does not hide what is wrong with the others, and gives no findings of its own making."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec.issue import SpecError
from infra.targets.registry import load_spec as load
from infra.validate.partial import validate_readable

GOOD: dict[str, Any] = {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}}

TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "bad time and range beside a typo in a group": (
        {
            "groups": {"gpu": {"cuont": 2}},
            "slurm": {"default_time": "banana"},
            "network": {"cidr": "10.300.0.0/24"},
        },
        ["network.cidr", "slurm.default_time"],
    ),
    "the default group cannot be judged where the groups cannot be read": (
        {"groups": {"gpu": {"count": "two"}}, "slurm": {"default_group": "gpu"}},
        [],
    ),
    "rules of a section with a problem wait for it": (
        {"slurm": {"default_time": "banana", "kill_wait": 3}},
        [],
    ),
    "nothing is said for a target that is unknown": (
        {"target": "moon", "slurm": {"default_time": "banana"}},
        [],
    ),
    "an unknown key at the top hides nothing": (
        {"gruops": {}, "slurm": {"default_time": "banana"}},
        ["slurm.default_time"],
    ),
    "a name that cannot be read hides nothing": (
        {"name": 7, "budget": {"usd_per_hour": 10, "usd_total": 5}},
        ["budget.usd_total"],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_rest_is_judged_in_the_same_breath(case: str) -> None:
    changes, expected = TABLE[case]
    data = GOOD | changes
    with pytest.raises(SpecError) as bad:
        load(data)
    assert sorted(issue.where for issue in validate_readable(data, bad.value.issues)) == expected


@pytest.mark.parametrize("data", [None, 7, [], "text"])
def test_what_is_no_mapping_has_no_rest(data: Any) -> None:
    assert validate_readable(data, []) == []
