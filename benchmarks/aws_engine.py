"""Counts the API calls and seconds of the g6 pair's life in the real Pulumi engine, with moto in the place of AWS.

    python benchmarks/aws_engine.py

The calls are those of the test plugin, of our own providers and of teardown's search; the real provider asks more.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from benchmarks.figures import Figure, report  # noqa: E402
from tests import moto_patches  # noqa: E402
from tests.aws_engine import moto_gaps  # noqa: E402
from tests.aws_engine.cloud import on_moto  # noqa: E402
from tests.aws_engine.cloud_stack import CALLS_AT_MOST, CloudStack, example  # noqa: E402
from tests.aws_engine.guests import booting  # noqa: E402
from tests.moto_server import Moto, listening  # noqa: E402


def main() -> int:
    figures = measure()
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def measure() -> list[Figure]:
    moto_patches.apply()
    moto_gaps.apply()
    server = Moto()
    with listening(server) as server.url, tempfile.TemporaryDirectory() as home, booting():
        os.environ |= server.environment()
        stack = example("aws-g6-pair", Path(home), on_moto(server))
        _live(stack)
    calls = [Figure(what, count, "calls", at_most=CALLS_AT_MOST[what]) for what, count in stack.calls.items()]
    return [*calls, *(Figure(what, seconds) for what, seconds in stack.seconds.items())]


def _live(stack: CloudStack) -> None:
    with stack.counted("up"):
        stack.up()
    with stack.counted("refresh"):
        stack.up()
    stack.spec["tags"] = {"team": "x"}
    with stack.counted("change"):
        stack.up()
    with stack.counted("teardown"):
        stack.teardown()


if __name__ == "__main__":
    sys.exit(main())
