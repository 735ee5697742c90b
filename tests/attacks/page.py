"""Write the table of the attacks into SECURITY.md: `python -m tests.attacks.page`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.attacks.attacks import ATTACKS
from tests.fault_matrix.marked_tests import REPO, MarkedTest, list_marked_tests

PAGE = Path("SECURITY.md")
MARKER = "attack"
BEGIN = "<!-- attacks: generated from tests/attacks and marked tests by `make golden` -->\n"
END = "<!-- end of attacks -->\n"


def render_table(tests: Sequence[MarkedTest]) -> str:
    """Return the table, with the tests that play each attack."""
    lines = ["| | severity | attack | what stops it | tests that play it | where |", "|---|---|---|---|---|---|"]
    for number, attack in ATTACKS.items():
        own = list_tests(number, tests)
        places = ", ".join(dict.fromkeys(test.place for test in own))
        names = ", ".join(_link(test) for test in own)
        cells = [f"A{number}", attack.severity, attack.attack, attack.stopped_by, names, places]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def list_tests(number: int, tests: Sequence[MarkedTest]) -> list[MarkedTest]:
    """Return the tests that play an attack."""
    return [test for test in tests if number in test.rows]


def replace_table(page: str, table: str) -> str:
    """Return the page with another table between the two comments."""
    before, _, table_and_after = page.partition(BEGIN)
    _, _, after = table_and_after.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def list_attack_tests() -> list[MarkedTest]:
    """Return all tests that play an attack."""
    return list_marked_tests(marker=MARKER)


def _link(test: MarkedTest) -> str:
    night = ", nightly" if test.nightly else ""
    return f"[`{test.name}`]({test.path}){night}"


if __name__ == "__main__":
    file = REPO / PAGE
    file.write_text(replace_table(file.read_text(), render_table(list_attack_tests())))
