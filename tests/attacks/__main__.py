"""Play attacks again: `python -m tests.attacks A2 A3`, or all of them without a name."""

from __future__ import annotations

import subprocess
import sys

from tests.attacks.attacks import ATTACKS
from tests.attacks.page import list_attack_tests, list_tests
from tests.fault_matrix.marked_tests import REPO

_BOX = "tests/trainer/"


def main(names: list[str]) -> int:
    """Run the tests of the named attacks and return 1 if one fails, 2 if a name is wrong."""
    numbers = {f"A{number}": number for number in ATTACKS}
    if unknown := [name for name in names if name.upper() not in numbers]:
        print(f"unknown: {', '.join(unknown)}; allowed: {', '.join(numbers)}", file=sys.stderr)
        return 2
    tests = list_attack_tests()
    chosen = [test for name in names or numbers for test in list_tests(numbers[name.upper()], tests)]
    boxed = list(dict.fromkeys(test.id for test in chosen if test.path.startswith(_BOX)))
    others = list(dict.fromkeys(test.id for test in chosen if not test.path.startswith(_BOX)))
    runs = [
        ["-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "nightly or not nightly", *others] if others else [],
        ["-m", "tests.trainer_box", "-v", *boxed] if boxed else [],
    ]
    codes = [subprocess.run([sys.executable, *run], cwd=REPO, check=False).returncode for run in runs if run]
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
