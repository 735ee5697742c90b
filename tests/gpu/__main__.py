"""`make test-gpu`: run these tests, or list the missing requirements; arguments are passed to pytest.

python -m tests.gpu -k presets
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gpu.requirements import list_missing

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    missing = list_missing()
    if missing:
        print(f"test-gpu: {sys.executable} lacks\n" + "\n".join(f"  {line}" for line in missing), file=sys.stderr)
        print("test-gpu: use another interpreter with make test-gpu PYTHON=...", file=sys.stderr)
        return 1
    import pytest  # noqa: PLC0415  # may not be installed

    return int(pytest.main([str(HERE), "-q", "-p", "no:cacheprovider", "--durations=10", *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
