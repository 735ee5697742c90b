"""`make test`: lint, then the layers from quick to slow, all of them whatever fails; one summary and one last line."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests import lint, trainer_box

REPO = Path(__file__).resolve().parent.parent
LAYERS = {
    "pure": "not engine and not e2e and not faults",
    "trainer": "",  # torch is not here but on the nodes: these run in a container of the node image
    "engine": "engine and not e2e and not faults",
    "e2e": "e2e and not faults",
    "faults": "faults",
}


@dataclass(frozen=True)
class Layer:
    name: str
    passed: int
    failed: int
    seconds: float


def run_layer(name: str, expression: str, *options: str) -> Layer:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        if name == "trainer":
            code = trainer_box.run(["tests/trainer", "-q", *options], report)
        else:
            command = [sys.executable, "-m", "pytest", "-q", "-m", expression, f"--junit-xml={report}", *options]
            code = subprocess.run([*command, "--ignore=tests/trainer"], cwd=REPO, check=False).returncode
        passed, failed = counts(report.read_text() if report.exists() else "", code)
    return Layer(name, passed, failed, time.monotonic() - began)


def counts(report: str, code: int) -> tuple[int, int]:
    """(passed, failed). A skipped test did not pass; a run that broke off or found no tests failed."""
    tests = bad = 0
    for suite in ElementTree.fromstring(report).iter("testsuite") if report else ():  # noqa: S314  # our own pytest wrote it
        tests += int(suite.get("tests", 0))
        bad += sum(int(suite.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
    return max(tests - bad, 0), bad if bad or code == 0 else 1


def run_lint() -> Layer:
    began = time.monotonic()
    passed, failed = lint.main()
    return Layer("lint", passed, failed, time.monotonic() - began)


def summary(layers: list[Layer]) -> str:
    rows = [f"{'layer':<8} {'passed':>7} {'failed':>7} {'seconds':>9}"]
    rows += [f"{layer.name:<8} {layer.passed:>7} {layer.failed:>7} {layer.seconds:>9.1f}" for layer in layers]
    return "\n".join([*rows, "", f"{sum(x.passed for x in layers)} passed, {sum(x.failed for x in layers)} failed"])


def main(options: list[str]) -> int:
    """`options` go to pytest."""
    layers = [] if options else [run_lint()]
    for name, expression in LAYERS.items():
        print(f"\n== {name}", flush=True)
        layers.append(run_layer(name, expression, *options))
    print(f"\n{summary(layers)}", flush=True)
    return int(any(layer.failed for layer in layers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
