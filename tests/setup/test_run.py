"""Running commands: output goes to a log, errors show its end, and stopping a command also ends its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from setup import run as setup_run
from setup.run import SetupError, StoppedError, ask, run, stop_on, tail

REPO = Path(__file__).resolve().parents[2]


def test_a_failure_shows_the_last_15_lines_and_the_path_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "apt.log"
    with pytest.raises(SetupError) as failure:
        run(["sh", "-c", "seq 1 40; exit 7"], log)
    lines = str(failure.value).splitlines()
    assert lines[0] == "`sh -c seq 1 40; exit 7` failed with exit code 7"
    assert lines[1] == f"  the last lines of {log}:"
    assert lines[2:] == [f"    | {number}" for number in range(26, 41)]
    assert log.read_text().splitlines()[:2] == ["$ sh -c seq 1 40; exit 7", "1"]


@pytest.mark.parametrize(
    ("word", "logged"),
    [
        ("https://user:token@index.test/simple", "https://****@index.test/simple"),
        ("http://token@proxy.test:3128", "http://****@proxy.test:3128"),
        ("https://index.test/simple", "https://index.test/simple"),
        ("https://index.test/a@b", "https://index.test/a@b"),
    ],
)
def test_passwords_in_urls_are_not_logged(tmp_path: Path, word: str, logged: str) -> None:
    run(["true", word], tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"$ true {logged}\n"


def test_a_timeout_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="`sleep` did not finish within 0 s and was stopped\n  the last lines of"):
        run(["sleep", "300"], tmp_path / "log", timeout=0.1)


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
def test_a_timeout_ends_the_command_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: str
) -> None:
    monkeypatch.setattr("setup.run.KILL_GRACE_S", 0.3)
    child, communicate = tmp_path / "child", setup_run._communicate

    def communicate_later(process: subprocess.Popen[bytes], timeout: float) -> tuple[bytes, bytes]:
        _wait_for(child)
        return communicate(process, timeout)

    monkeypatch.setattr(setup_run, "_communicate", communicate_later)
    script = f"{stubborn}sleep 300 & echo $! > {child}.new && mv {child}.new {child}; wait; sleep 300"
    with pytest.raises(SetupError, match="`bash` did not finish within"):
        run(["bash", "-c", script], tmp_path / "log", timeout=0.2)
    assert _has_ended(int(child.read_text()))


@pytest.mark.parametrize("command", [run, ask])
def test_stopping_a_phase_ends_its_command_and_children(tmp_path: Path, command: Callable[..., object]) -> None:
    child, stop = tmp_path / "child", threading.Event()
    ended: list[type[Exception]] = []

    def phase() -> None:
        stop_on(stop)
        logs = [tmp_path / "log"] if command is run else []
        try:
            command(["bash", "-c", f"sleep 300 & echo $! > {child}.new && mv {child}.new {child}; wait"], *logs)
        except StoppedError as error:
            ended.append(type(error))

    thread = threading.Thread(target=phase)
    thread.start()
    _wait_for(child)
    stop.set()
    thread.join(120)
    assert ended == [StoppedError]
    assert _has_ended(int(child.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_setup_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    """Send the signal while two phases are running: the commands of both must end."""
    program = (
        "import signal, sys; from pathlib import Path; from setup import command; from setup.registry import Phase\n"
        "from setup.run import run; from tests.setup.machine import READY\n"
        # Restore the default handlers: a test run in the background inherits ignored signals.
        "signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "script = 'echo $$ > $0.new && mv $0.new $0; sleep 300; true'\n"
        "def work(name): return lambda paths, _, log: run(['bash', '-c', script, paths.cache / name], log)\n"
        "command.PHASES = [Phase(name, lambda *_: False, work(name)) for name in ('venv', 'kernel')]\n"
        "command.gather = lambda *_, **__: READY\n"
        "sys.exit(command.main([]))"
    )
    environment = {**os.environ, "MUSTER_CACHE": str(tmp_path)}
    argv = [sys.executable, "-c", program]
    setup = subprocess.Popen(argv, cwd=REPO, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    children = [tmp_path / "venv", tmp_path / "kernel"]
    for child in children:
        _wait_for(child)
    setup.send_signal(number)
    _, stderr = setup.communicate(timeout=120)
    assert (setup.returncode, stderr.decode().strip()) == (130, "setup: interrupted; run it again to continue")
    assert all(_has_ended(int(child.read_text())) for child in children)
    phases = json.loads((tmp_path / "logs" / "setup.json").read_text())["phases"]
    assert {name: phase["state"] for name, phase in phases.items()} == {
        "preflight": "done",
        "venv": "stopped",
        "kernel": "stopped",
    }


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="`no-such-program` is not installed"):
        run(["no-such-program"], tmp_path / "log")
    assert ask(["no-such-program"]).code == 127
    assert ask(["sleep", "300"], timeout=0.05).code == 124


def test_tail_returns_the_last_state_of_a_rewritten_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n 10 %\r 55 %\r 90 %\r\n\n")
    assert tail(log, 1) == [" 90 %"]
    assert tail(tmp_path / "none", 3) == []


def _has_ended(pid: int) -> bool:
    """Return whether the process ends within a minute; a zombie counts as ended."""
    for _ in range(3000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
