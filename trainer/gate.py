"""One rank of the ready gate: joins all the others over the fabric and says, stage by stage, how far it came.

    srun --ntasks-per-node=1 python -m trainer.gate MASTER_HOST MASTER_ADDRESS TIMEOUT

Each stage is one line, `muster-gate {...}`, so that a rank that hangs or dies is known by host and by what it did last.
"""

from __future__ import annotations

import gc
import json
import os
import sys

PREFIX = "muster-gate"
# Below the range from which kernels hand out ports of outgoing connections, so nobody sits on it by chance.
PORTS = range(20000, 30000)


def main() -> int:
    master_host, master, timeout_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    host = os.environ["SLURMD_NODENAME"]
    say(host, rank, "started")
    # Importing torch makes a million objects that stay: collecting garbage meanwhile costs a tenth of the import.
    gc.disable()
    from trainer import world as ranks  # noqa: PLC0415  # so that "started" is said before the slow import

    say(host, rank, "imported")
    is_master = host == master_host
    try:
        store = ranks.open_store(master, port(int(os.environ["SLURM_JOB_ID"])), is_master, timeout_s)
        member = ranks.me(rank, world, 0, master)
        ranks.join(store, member, timeout_s)
        say(host, rank, "joined", address=member.address, device=member.device)
        say(host, rank, "passed", sum=ranks.check_sum(member))
        ranks.leave(store, is_master, world)
    except (ranks.WorldError, RuntimeError) as error:
        say(host, rank, "failed", error=first_line(error))
        return 1
    return 0


def port(job_id: int) -> int:
    return PORTS[job_id % len(PORTS)]


def say(host: str, rank: int, stage: str, **more: object) -> None:
    # One write: print makes several where output is unbuffered, and ranks that share a pipe would mix their lines.
    sys.stdout.write(f"{PREFIX} {json.dumps({'host': host, 'rank': rank, 'stage': stage, **more})}\n")
    sys.stdout.flush()


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Taking torch down in order takes 0.4 s of CPU per node and proves nothing.
    os._exit(code)
