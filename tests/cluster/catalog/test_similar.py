"""Suggestions for a mistyped name."""

from __future__ import annotations

import pytest

from cluster.catalog.similar import find_similar

STACKS = ["aws-existing-vpc", "aws-g6-pair", "aws-p5-autoscaled", "aws-p5en-lustre", "local", "local-full"]
TYPES = ["g6.xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "m7i.large"]


@pytest.mark.parametrize(
    ("word", "names", "meant"),
    [
        ("p5e", TYPES, ["p5e.48xlarge", "p5en.48xlarge"]),
        ("p5e", STACKS, ["aws-p5en-lustre"]),
        ("p5", STACKS, ["aws-p5-autoscaled", "aws-p5en-lustre"]),
        ("p5en.48xlarge", STACKS, ["aws-p5en-lustre"]),
        ("P5EN", TYPES, ["p5en.48xlarge"]),
        ("lustre", STACKS, ["aws-p5en-lustre"]),
        ("locl", STACKS, ["local"]),
        ("p5en.48xlareg", TYPES, ["p5en.48xlarge", "p5e.48xlarge", "p5.48xlarge"]),
        ("", STACKS, []),
        ("???", TYPES, []),
    ],
)
def test_names_with_the_same_start_come_before_similar_ones(word: str, names: list[str], meant: list[str]) -> None:
    assert find_similar(word, names)[: len(meant)] == meant
    assert bool(find_similar(word, names)) == bool(meant)
