"""SECURITY.md: every attack has a test, every test that it names exists, and the generated table is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.attacks.attacks import ATTACKS
from tests.attacks.page import list_attack_tests, list_tests, render_table, replace_table

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


def test_the_table_of_the_review_is_current() -> None:
    assert replace_table(TEXT, render_table(list_attack_tests())) == TEXT, "run `make golden` and review the difference"


def test_the_review_has_eleven_attacks() -> None:
    assert list(ATTACKS) == list(range(1, 12))
    assert {number for test in list_attack_tests() for number in test.rows} <= set(ATTACKS)


@pytest.mark.parametrize("number", ATTACKS)
def test_an_attack_is_played_where_it_counts(number: int) -> None:
    assert {test.place for test in list_tests(number, list_attack_tests())} & set(ATTACKS[number].needs)
