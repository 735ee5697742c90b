"""Two setups at once: the second waits, says for whom, and goes on when the first has ended, however it ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from setup.lock import exclusive

HOLD = """
import sys, time
from pathlib import Path
from setup.lock import exclusive
with exclusive(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_and_a_killed_holder_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "setup.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    said: list[str] = []
    entered, waiting = threading.Event(), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with exclusive(path, say):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(10)
    assert not entered.is_set()
    assert said == [f"another setup (process {holder.pid}) is at work; waiting for it to finish (0 s)"]
    holder.send_signal(signal.SIGKILL)
    assert entered.wait(10)
    thread.join()
    holder.wait()
    holder.stdout.close()


def test_a_free_lock_is_taken_in_silence(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with exclusive(tmp_path / "setup.lock", said.append):
            pass
    assert said == []
