"""`make test`: lint, then the layers, side by side where most of a layer is waiting; all of them whatever fails.

What a layer says comes out in one piece when it ends, and how far each is once a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests import lint, trainer_box

REPO = Path(__file__).resolve().parent.parent
LAYERS = {
    "pure": "not engine and not e2e and not faults",
    "trainer": "",  # torch is not here but on the nodes: these run in a container of the node image
    "engine": "engine and not e2e and not faults",
    "e2e": "e2e and not faults and not alone",
    "faults": "faults",
    "alone": "alone",
}
# Where all tests of a marker are: to read every other file takes longer than some of them run.
FOLDERS = {"e2e": ("tests/e2e", "tests/node"), "faults": ("tests/faults",), "alone": ("tests/e2e",)}
# Two lanes, for two cores: a cluster mostly waits. Tests that measure come when all others are through.
LANES = (("pure", "trainer", "faults"), ("e2e", "engine"))
LAST = ("alone",)
SAY_S = 60.0
_RESULTS = re.compile(r"^[.FEsxX]+", re.MULTILINE)


@dataclass(frozen=True)
class Layer:
    name: str
    passed: int
    failed: int
    seconds: float


@dataclass
class Runner:
    """`options` go to pytest."""

    options: tuple[str, ...]
    folder: Path
    began: float = field(default_factory=time.monotonic)
    done: list[Layer] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def side_by_side(self, *lanes: tuple[str, ...]) -> None:
        with ThreadPoolExecutor(len(lanes)) as pool:
            running = [pool.submit(self._lane, lane) for lane in lanes]
            try:
                while wait(running, SAY_S).not_done:
                    print(f"{(time.monotonic() - self.began) / 60:4.0f} min: {', '.join(self._progress())}", flush=True)
            except KeyboardInterrupt:
                # The layers were interrupted too, and clean up before they end.
                self.stopped.set()
                raise
        for lane in running:
            lane.result()

    def _lane(self, names: tuple[str, ...]) -> None:
        for name in names:
            if not self.stopped.is_set():
                layer = self._layer(name)
                said = self._output(name).read_text(errors="replace").strip()
                print(f"\n== {name}, {layer.seconds:.0f} s\n{said}\n", flush=True)
                self.done.append(layer)

    def _layer(self, name: str) -> Layer:
        began, report = time.monotonic(), self.folder / name / "report.xml"
        report.parent.mkdir()
        with self._output(name).open("w") as output:
            if name == "trainer":
                code = trainer_box.run(["tests/trainer", "-q", *self.options], report, output)
            else:
                command = [sys.executable, "-m", "pytest", "-q", "-m", LAYERS[name], "--ignore=tests/trainer"]
                command += [f"--junit-xml={report}", *self.options, *FOLDERS.get(name, ())]
                code = subprocess.run(
                    command, cwd=REPO, stdout=output, stderr=subprocess.STDOUT, check=False
                ).returncode
        passed, failed = counts(report.read_text() if report.exists() else "", code)
        return Layer(name, passed, failed, time.monotonic() - began)

    def _progress(self) -> Iterator[str]:
        ended = {layer.name for layer in self.done}
        for name in LAYERS:
            if name not in ended and self._output(name).exists():
                results = "".join(_RESULTS.findall(self._output(name).read_text(errors="replace")))
                bad = len(results.replace(".", ""))
                yield f"{name} {len(results)} done" + (f" ({bad} not passed)" if bad else "")

    def _output(self, name: str) -> Path:
        return self.folder / f"{name}.log"


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


def summary(layers: list[Layer], seconds: float) -> str:
    rows = [f"{'layer':<8} {'passed':>7} {'failed':>7} {'seconds':>9}"]
    rows += [f"{layer.name:<8} {layer.passed:>7} {layer.failed:>7} {layer.seconds:>9.1f}" for layer in layers]
    rows += [f"{'all':<8} {'':>7} {'':>7} {seconds:>9.1f}"]
    rows += ["", f"{sum(x.passed for x in layers)} passed, {sum(x.failed for x in layers)} failed"]
    return "\n".join(rows)


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tuple(options), Path(folder))
        if not options:
            runner.done.append(run_lint())
        runner.side_by_side(*LANES)
        runner.side_by_side(LAST)
    order = ["lint", *LAYERS]
    layers = sorted(runner.done, key=lambda layer: order.index(layer.name))
    print(f"\n{summary(layers, time.monotonic() - runner.began)}", flush=True)
    return int(any(layer.failed for layer in layers))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted; the layers have cleaned up")
