"""The ranks of a run as forks of one process, so that torch is imported only once.

[HOLD=RANK:STEP] python -m tests.trainer.forked_ranks RANKS PROGRAM ARGUMENT ...
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from datetime import timedelta
from typing import Any

import torch.distributed

from tests.trainer.held_rank import hold

dist: Any = torch.distributed


def launch(ranks: int, program: str, arguments: list[str]) -> int:
    """Start the ranks and return their largest exit status; a killed rank counts as 1.

    Like torchrun, the parent serves the store of all worlds that the ranks form.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    sys.argv = [program, *arguments]
    pids = [_fork(rank, ranks, program, listener) for rank in range(ranks)]
    # Not earlier, because its threads cannot be forked. The store takes the listener, which is open since before: a
    # port that is only looked up could be taken by another test until the store listens.
    store: Any = dist.TCPStore(
        "127.0.0.1", port, None, True, timedelta(seconds=60), wait_for_workers=False, master_listen_fd=listener.detach()
    )
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    del store
    return max(status if status >= 0 else 1 for status in statuses)


def _fork(rank: int, ranks: int, program: str, listener: socket.socket) -> int:
    pid = os.fork()
    if pid:
        return pid
    listener.close()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    held, _, step = os.environ.get("HOLD", "").partition(":")
    if held == str(rank):
        hold(int(step))
    # It ends with the status of the program, which raises SystemExit, or with that of an error.
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except Exception:
        # As the interpreter does. This process may be a fork of one that handles errors itself.
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
