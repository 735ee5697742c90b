"""`make test-gpu`: says what is missing for these tests, or runs them; words go to pytest.

python -m tests.gpu -k presets
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gpu.needs import missing

HERE = Path(__file__).resolve().parent


def main(words: list[str]) -> int:
    lacking = missing()
    if lacking:
        print(f"test-gpu: {sys.executable} lacks\n" + "\n".join(f"  {line}" for line in lacking), file=sys.stderr)
        print("test-gpu: make test-gpu PYTHON=... names one that has it", file=sys.stderr)
        return 1
    import pytest  # noqa: PLC0415  # may not be there

    return int(pytest.main([str(HERE), "-q", "-p", "no:cacheprovider", "--durations=10", *words]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
