"""`make test`: run lint and every layer of tests, two at a time; print the slowest tests and one summary.

    python -m tests.run                      all layers, without the tests marked `nightly`
    python -m tests.run --quick              lint and the pure layer: before each commit
    python -m tests.run --nightly            everything, including the long drills, one layer at a time
    python -m tests.run --layers=e2e,faults  only these layers; may be combined with --nightly
    python -m tests.run --part=scenarios-1   a part of the nightly tests, see tests/nightly_parts.py
    python -m tests.run -k name              other options go to pytest in every layer, and lint is skipped

The output of a layer is printed in one piece when the layer ends; every minute a line shows how far each layer is.
"""

from __future__ import annotations

import os
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
from tests.nightly_parts import PARTS, VARIABLE

REPO = Path(__file__).resolve().parent.parent
LAYERS = {
    "pure": "not engine and not e2e and not faults",
    "trainer": "",  # Torch is only on the nodes, so these tests run in a container of the node image.
    "engine": "engine and not e2e and not faults",
    "e2e": "e2e and not faults",
    "faults": "faults",
}
# Layers whose tests are all in certain folders: importing every other test file takes longer than some layers run.
FOLDERS = {
    "engine": (
        *("tests/engine", "tests/infra/targets/aws/with_engine", "tests/infra/targets/shelf", "tests/setup"),
        *("tests/infra/test_engine_pulumi.py", "tests/muster/test_commands_teardown.py"),
        "tests/infra/targets/azure/test_with_engine.py",
        *("tests/bootstrap/test_training_env.py", "tests/bootstrap/test_pinned_python.py"),
    ),
    "e2e": ("tests/e2e", "tests/infra/targets/aws/node", "tests/infra/targets/aws/rehearse"),
    "faults": ("tests/faults",),
}
# Folders whose tests all belong to other layers, because their conftest.py marks them: they need not be imported.
NOT_PURE = ("tests/engine", "tests/e2e", "tests/faults")
# The layers with clusters come early: they often wait, and what runs next to them uses the processors meanwhile. The
# last two use all of them until the end.
ORDER = ("lint", "e2e", "pure", "faults", "trainer", "engine")
LAYERS_AT_ONCE = 2
# By night, tests start eight ranks each: a cluster next to them on two cores misses its timeouts.
LAYERS_AT_ONCE_BY_NIGHT = 1
QUICK = ("lint", "pure")
# Tests of these layers have no machine in common, so several run at a time: the number of processes.
PROCESSES = {"pure": 2, "trainer": 2, "engine": 2}
PROGRESS_INTERVAL_S = 60.0
SLOWEST_TESTS = 10
_RESULT_CHARACTERS = re.compile(r"^[.FEsxX]+", re.MULTILINE)


@dataclass(frozen=True)
class Layer:
    """The result of one layer; `slowest` has seconds and names, longest first."""

    name: str
    passed: int
    failed: int
    seconds: float
    slowest: tuple[tuple[float, str], ...] = ()
    not_run: int = 0


@dataclass
class Runner:
    """Runs layers and collects their results; `options` go to pytest."""

    options: tuple[str, ...]
    folder: Path
    nightly: bool = False
    started_at: float = field(default_factory=time.monotonic)
    done: list[Layer] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, names: tuple[str, ...]) -> None:
        """Run layers in this order, several at a time; a failed layer stops no other."""
        with ThreadPoolExecutor(LAYERS_AT_ONCE_BY_NIGHT if self.nightly else LAYERS_AT_ONCE) as pool:
            running = [pool.submit(self._run_and_print, name) for name in names]
            try:
                while wait(running, PROGRESS_INTERVAL_S).not_done:
                    minutes = (time.monotonic() - self.started_at) / 60
                    print(f"{minutes:4.0f} min: {', '.join(self._progress())}", flush=True)
            except KeyboardInterrupt:
                # The layers received the interrupt too, and clean up before they end.
                self.stopped.set()
                raise
        for layer in running:
            layer.result()

    def _run_and_print(self, name: str) -> None:
        if self.stopped.is_set():
            return
        if name == "lint":
            self.done.append(run_lint())
            return
        layer = self._run_layer(name)
        output = self._output(name).read_text(errors="replace").strip()
        print(f"\n== {name}, {layer.seconds:.0f} s\n{output}\n\n{format_slowest(layer)}\n", flush=True)
        self.done.append(layer)

    def _run_layer(self, name: str) -> Layer:
        started_at, report = time.monotonic(), self.folder / name / "report.xml"
        report.parent.mkdir()
        options = ["-q", *pytest_options(name, nightly=self.nightly), *self.options]
        with self._output(name).open("w") as output:
            if name == "trainer":
                code = trainer_box.run(["tests/trainer", *options], report, output)
            else:
                command = [sys.executable, "-m", "pytest", *options, "--ignore=tests/trainer"]
                command += [f"--junit-xml={report}", *FOLDERS.get(name, ())]
                code = subprocess.run(
                    command, cwd=REPO, stdout=output, stderr=subprocess.STDOUT, check=False
                ).returncode
        text = report.read_text() if report.exists() else ""
        passed, failed = count_results(text, code)
        return Layer(name, passed, failed, time.monotonic() - started_at, tuple(slowest_tests(text)))

    def _progress(self) -> Iterator[str]:
        ended = {layer.name for layer in self.done}
        for name in LAYERS:
            if name not in ended and self._output(name).exists():
                text = self._output(name).read_text(errors="replace")
                results = "".join(_RESULT_CHARACTERS.findall(text))
                bad = len(results.replace(".", ""))
                yield f"{name} {len(results)} done" + (f" ({bad} not passed)" if bad else "")

    def _output(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def choose_layers(arguments: list[str]) -> tuple[str, ...]:
    """Return the layers that the arguments select, in the order in which they run."""
    lists = [word.removeprefix("--layers=").split(",") for word in arguments if word.startswith("--layers=")]
    if not lists:
        return QUICK if "--quick" in arguments else ORDER
    unknown = set(lists[-1]) - set(ORDER)
    if unknown:
        raise SystemExit(f"--layers: unknown {', '.join(sorted(unknown))!r}; the layers are {', '.join(ORDER)}")
    return tuple(name for name in ORDER if name in lists[-1])


def choose_part(arguments: list[str]) -> str:
    """Return the part of the nightly tests that the arguments name; empty if none."""
    named = [word.removeprefix("--part=") for word in arguments if word.startswith("--part=")]
    if named and named[-1] not in PARTS:
        raise SystemExit(f"--part: unknown {named[-1]!r}; the parts are {', '.join(PARTS)}")
    return named[-1] if named else ""


def pytest_options(layer: str, *, nightly: bool) -> list[str]:
    """Return the options that select a layer's tests and spread them over processes."""
    markers = [LAYERS[layer], *([] if nightly else ["not nightly"])]
    expression = " and ".join(filter(None, markers))
    processes = PROCESSES.get(layer, 0)
    return [
        *(["-m", expression] if expression else []),
        *([f"--ignore={folder}" for folder in NOT_PURE] if layer == "pure" else []),
        *(["--hypothesis-profile=nightly"] if nightly and layer == "pure" else []),
        # A file stays in one process, with its module's fixtures; a process that is done takes files from the other.
        *(["-n", str(processes), "--dist", "loadfile"] if processes else []),
    ]


def count_results(report: str, code: int) -> tuple[int, int]:
    """Return (passed, failed) of a JUnit report.

    A skipped test did not pass; a run that was cut short or collected no tests failed.
    """
    tests = bad = 0
    for suite in ElementTree.fromstring(report).iter("testsuite") if report else ():  # noqa: S314  # our own pytest wrote it
        tests += int(suite.get("tests", 0))
        bad += sum(int(suite.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
    return max(tests - bad, 0), bad if bad or code == 0 else 1


def slowest_tests(report: str) -> list[tuple[float, str]]:
    """Return the seconds (set-up and clean-up included) and names of the slowest tests in a JUnit report."""
    cases = ElementTree.fromstring(report).iter("testcase") if report else ()  # noqa: S314  # our own pytest wrote it
    times = [(float(case.get("time", 0)), f"{case.get('classname', '')}::{case.get('name', '')}") for case in cases]
    return sorted(times, reverse=True)[:SLOWEST_TESTS]


def format_slowest(layer: Layer) -> str:
    """Return the lines that show the slowest tests of a layer."""
    lines = [f"{seconds:8.1f} s  {name}" for seconds, name in layer.slowest]
    return "\n".join([f"slowest tests of {layer.name}:", *lines])


def run_lint() -> Layer:
    """Run the linters and return the result as a layer; the audit, which asks a live database, only if required."""
    started_at = time.monotonic()
    passed, failed, not_run = lint.main(audit=os.environ.get("MUSTER_AUDIT") == "required")
    return Layer("lint", passed, failed, time.monotonic() - started_at, not_run=not_run)


def summarize(layers: list[Layer], seconds: float) -> str:
    """Return the table of layers; its last line is `N passed, N failed`, and what could not run."""
    rows = [f"{'layer':<8} {'passed':>7} {'failed':>7} {'seconds':>9}"]
    rows += [f"{layer.name:<8} {layer.passed:>7} {layer.failed:>7} {layer.seconds:>9.1f}" for layer in layers]
    rows += [f"{'all':<8} {'':>7} {'':>7} {seconds:>9.1f}"]
    not_run = sum(x.not_run for x in layers)
    total = f"{sum(x.passed for x in layers)} passed, {sum(x.failed for x in layers)} failed"
    rows += ["", total + (f", {not_run} not run" if not_run else "")]
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Run what the arguments select and return the exit code: 0 if everything passed."""
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    own = ("--layers=", "--part=")
    options = [word for word in arguments if word not in ("--quick", "--nightly") and not word.startswith(own)]
    names = choose_layers(arguments)
    if part := choose_part(arguments):
        names = tuple(name for name in names if name in PARTS[part].layers)
        os.environ |= {VARIABLE: part, **PARTS[part].variables}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(tuple(options), Path(folder), nightly=bool(part) or "--nightly" in arguments)
        runner.run(tuple(name for name in names if name != "lint" or not options))
    order = ["lint", *LAYERS]
    layers = sorted(runner.done, key=lambda layer: order.index(layer.name))
    print(f"\n{summarize(layers, time.monotonic() - runner.started_at)}", flush=True)
    return int(any(layer.failed for layer in layers))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted; the layers have cleaned up")
