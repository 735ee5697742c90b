"""What README and docs/aws.md promise about AWS: the price is computed, commands and tests are there."""

from __future__ import annotations

import re
from pathlib import Path

from infra.targets.registry import read_spec as read
from muster.commands.cost import describe_cost

ROOT = Path(__file__).parents[5]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "aws.md").read_text()


def test_the_price_of_the_quick_start_is_what_cost_says() -> None:
    assert describe_cost(read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")) in README


def test_every_example_is_there_and_named() -> None:
    linked = set(re.findall(r"\.\./stacks/(Pulumi\.aws-[\w-]+\.yaml)", PAGE))
    assert linked == {path.name for path in (ROOT / "stacks").glob("Pulumi.aws-*.yaml")}


def test_what_proves_it_exists() -> None:
    named = re.findall(r"`(?:pytest|python) ([\w/.]+)`", PAGE)
    assert len(named) >= 8
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_commands_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+) STACK=aws", README + PAGE)) <= targets
