"""SECURITY.md: every attack has a test, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).parents[1]
TEXT = (REPO / "SECURITY.md").read_text()
TEST = re.compile(r"tests/[\w/]+\.py")


def list_rows(heading: str) -> list[str]:
    """Return the rows of the tables under a heading, without their heads."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    tables = re.split(r"^\|[-|]+\|\n", section, flags=re.MULTILINE)[1:]
    return [line for table in tables for line in re.match(r"(?:\|.*\n?)*", table)[0].splitlines()]


def test_every_attack_names_a_test() -> None:
    rows = list_rows("Attacks that are tested")
    assert len(rows) > 10
    assert [row for row in rows if not TEST.search(row)] == []


def test_every_attack_can_be_repeated() -> None:
    commands = [row for row in list_rows("Attacks that are tested") if ".venv/bin/python -m" in row]
    attacks = [row for row in list_rows("Attacks that are tested") if row not in commands]
    assert set(TEST.findall("".join(attacks))) - set(TEST.findall("".join(commands))) == set()


def test_named_tests_exist() -> None:
    assert [name for name in TEST.findall(TEXT) if not (REPO / name).is_file()] == []
