"""A rank for the tests of votes and outcomes: joins, votes for a number of steps, and writes the results as JSON.

torchrun ... -m tests.trainer.life_rank FOLDER STEPS
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from trainer.life import outcome
from trainer.life.outcome import Code
from trainer.life.stop import StopListener
from trainer.life.vote import Ballot, Vote, VoteResult
from trainer.world import start

STEP_S = 0.05


def main() -> int:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    world = start("cpu", float(os.environ.get("JOIN_S", "60")))
    stop = StopListener(folder, world.rank).listen()
    vote = Vote(world)
    write(folder, world.rank, f"pid-{world.rank}", str(os.getpid()))
    agreed: VoteResult | None = None
    step = 0
    while step < steps and not (agreed and agreed.stop):
        step += 1
        crash_once(folder, world.rank, step)
        time.sleep(STEP_S)
        agreed = vote.exchange(Ballot(stop=stop.reason, busy=step == 3 and world.rank == 1, work_s=world.rank + 0.5))
        if agreed and agreed.busy:
            write(folder, world.rank, f"busy-{world.rank}", str(step))
    last = agreed if agreed and agreed.stop else vote.drain()
    vote.drain()
    assert last is not None
    reason = last.stop
    write(folder, world.rank, f"end-{world.rank}", json.dumps({"step": step, "stop": reason, "work": last.work_s}))
    if reason:
        code = outcome.choose_code(reason)
        status = outcome.end_after_stop(reason, stop.note or reason.text, step, folder, world.rank, code=code)
    else:
        status = outcome.end(Code.FINISHED, "all steps done", step, folder, world.rank)
    stop.close()
    world.close()
    return status


def crash_once(folder: Path, rank: int, step: int) -> None:
    mark = folder / "crash"
    if rank == 1 and step == 4 and mark.exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def write(folder: Path, rank: int, name: str, text: str) -> None:
    (folder / f"{name}.part").write_text(text)
    (folder / f"{name}.part").rename(folder / name)


if __name__ == "__main__":
    sys.exit(main())
