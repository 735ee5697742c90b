"""The ranks of a run as forks of one process, so that torch is imported only once.

[HOLD=RANK:STEP] python -m tests.trainer.forked_ranks RANKS PRESET key=value ...
"""

from __future__ import annotations

import os
import socket
import sys

import torch.distributed.fsdp  # noqa: F401

import trainer.loop.session  # noqa: F401
from tests.trainer.held_rank import hold
from trainer.__main__ import main


def launch(ranks: int, arguments: list[str]) -> int:
    """Start the ranks and return their largest exit status; a killed rank counts as 1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    pids = [_fork(rank, ranks, arguments) for rank in range(ranks)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(status if status >= 0 else 1 for status in statuses)


def _fork(rank: int, ranks: int, arguments: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    held, _, step = os.environ.get("HOLD", "").partition(":")
    if held == str(rank):
        hold(int(step))
    os._exit(main(arguments))


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
