"""The lock of setup: a second run waits, names the process it waits for, and continues when that process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from setup.paths import exclusive_lock

HOLD = """
import sys, time
from pathlib import Path
from setup.paths import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_waits_until_the_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "setup.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    messages: list[str] = []
    entered, waiting = threading.Event(), threading.Event()

    def report(text: str) -> None:
        messages.append(text)
        waiting.set()

    def second() -> None:
        with exclusive_lock(path, report):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(120)
    assert not entered.is_set()
    assert messages == [f"another setup (process {holder.pid}) is running; waiting for it to finish (0 s)"]
    holder.send_signal(signal.SIGKILL)
    assert entered.wait(120)
    thread.join()
    holder.wait()
    holder.stdout.close()


def test_a_free_lock_is_acquired_without_a_message(tmp_path: Path) -> None:
    messages: list[str] = []
    for _ in range(2):
        with exclusive_lock(tmp_path / "setup.lock", messages.append):
            pass
    assert messages == []
