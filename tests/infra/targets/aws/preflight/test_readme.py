"""README and docs/aws.md: the price is current; the named examples, tests and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from infra.targets.registry import read_spec as read
from muster.commands.cost import describe_cost

ROOT = Path(__file__).parents[5]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "aws.md").read_text()


def test_readme_has_the_current_price_of_the_quick_start() -> None:
    assert describe_cost(read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")) in README


def test_the_page_links_every_example() -> None:
    linked = set(re.findall(r"\.\./stacks/(Pulumi\.aws-[\w-]+\.yaml)", PAGE))
    assert linked == {path.name for path in (ROOT / "stacks").glob("Pulumi.aws-*.yaml")}


def test_tests_named_on_the_page_exist() -> None:
    named = re.findall(r"`(?:pytest|python) ([\w/.]+)`", PAGE)
    assert len(named) >= 8
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_commands_on_the_page_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+) STACK=aws", README + PAGE)) <= targets
