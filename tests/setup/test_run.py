"""What the user sees: the end of the log on failure, a heartbeat meanwhile, and a table at the end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from setup import progress
from setup.progress import Progress
from setup.record import Record, started_engine
from setup.run import Failed, ask, run, tail

REPO = Path(__file__).resolve().parents[2]


def test_a_failure_shows_the_last_15_lines_and_where_the_rest_is(tmp_path: Path) -> None:
    log = tmp_path / "apt.log"
    with pytest.raises(Failed) as failure:
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
def test_the_log_holds_no_password_of_an_address(tmp_path: Path, word: str, logged: str) -> None:
    run(["true", word], tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"$ true {logged}\n"


def test_a_time_limit_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="`sleep` did not finish within 0 s and was stopped\n  the last lines of"):
        run(["sleep", "30"], tmp_path / "log", timeout=0.1)


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
def test_what_ran_out_of_time_goes_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: str
) -> None:
    monkeypatch.setattr("setup.run.GRACE_S", 0.3)
    script = f"{stubborn}sleep 300 & echo $! > {tmp_path}/child; wait; sleep 300"
    with pytest.raises(Failed, match="`bash` did not finish within"):
        run(["bash", "-c", script], tmp_path / "log", timeout=0.7)
    assert _gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_set_up_leaves_no_child(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from setup import command; from setup.run import run\n"
        # As a terminal would start it: whoever runs the tests in the background passes on ignored signals.
        "signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "command._run = lambda *_: run(['bash', '-c', sys.argv[1]], Path(sys.argv[2]))\n"
        "sys.exit(command.main(['kernel']))"
    )
    child = tmp_path / "child"
    words = [f"echo $$ > {child}.new && mv {child}.new {child}; sleep 300; true", str(tmp_path / "log")]
    environment = {**os.environ, "MUSTER_CACHE": str(tmp_path)}
    setup = subprocess.Popen([sys.executable, "-c", program, *words], cwd=REPO, env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while not child.exists() and time.monotonic() < until:
        time.sleep(0.02)
    setup.send_signal(number)
    _, said = setup.communicate(timeout=20)
    assert (setup.returncode, said.decode().strip()) == (130, "setup: interrupted; run it again to go on")
    assert _gone(int(child.read_text()))


def test_a_missing_program_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="`no-such-program` is not installed"):
        run(["no-such-program"], tmp_path / "log")
    assert ask(["no-such-program"]).code == 127
    assert ask(["sleep", "9"], timeout=0.05).code == 124


def test_the_newest_text_of_a_rewritten_line_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n 10 %\r 55 %\r 90 %\r\n\n")
    assert tail(log, 1) == [" 90 %"]
    assert tail(tmp_path / "none", 3) == []


def test_heartbeat_tells_the_last_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_S", 0.02)
    out = io.StringIO()
    (tmp_path / "image.log").write_text("Step 4/9\nSetting up slurmctld\n")
    with Progress("image", tmp_path / "image.log", out):
        run(["sleep", "0.3"], tmp_path / "other.log")
    assert out.getvalue().splitlines()[0] == "image           0 s  Setting up slurmctld"


def test_heartbeat_rewrites_its_line_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "LIVE_S", 0.02)
    out = Terminal()
    (tmp_path / "log").write_text("x" * 500)
    with Progress("venv", tmp_path / "log", out):
        run(["sleep", "0.2"], tmp_path / "other.log")
    assert out.getvalue().startswith("\r\x1b[Kvenv ")
    assert out.getvalue().endswith("\r\x1b[K")
    assert "\n" not in out.getvalue()


def test_record_names_every_phase_and_keeps_a_failure(tmp_path: Path) -> None:
    record = Record()
    with record.timed("preflight") as outcome:
        outcome.state = "done"
    with pytest.raises(Failed), record.timed("docker"):
        raise Failed("no")
    record.write(tmp_path / "logs" / "setup.json")
    written = json.loads((tmp_path / "logs" / "setup.json").read_text())
    assert {name: phase["state"] for name, phase in written["phases"].items()} == {
        "preflight": "done",
        "docker": "failed",
    }
    assert written["seconds"] == pytest.approx(sum(phase["seconds"] for phase in written["phases"].values()))
    assert not started_engine(tmp_path / "logs" / "setup.json")


def test_record_summary() -> None:
    record = Record()
    for name, state in (("preflight", "done"), ("apt", "cached"), ("venv", "done")):
        with record.timed(name) as outcome:
            outcome.state = state
    assert record.summary().splitlines() == [
        "phase      seconds  state",
        "preflight      0.0  done",
        "apt            0.0  cached",
        "venv           0.0  done",
        "total          0.0",
    ]
    record.outcomes[-1].state = "cached"
    assert record.summary() == "setup: everything is there (0.0 s)"


def test_started_engine_reads_the_last_record(tmp_path: Path) -> None:
    path = tmp_path / "setup.json"
    assert not started_engine(path)
    path.write_text('{"phases": {"docker": {"state": "done"}}}')
    assert started_engine(path)
    path.write_text('{"phases"')
    assert not started_engine(path)


def _gone(pid: int) -> bool:
    """Ended, whether or not its new parent has taken note of that."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
