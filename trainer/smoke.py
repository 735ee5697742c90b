"""The smoke job: who takes part, does the sum come out right, how fast is the wire. Started by torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainer import bandwidth
from trainer.table import table
from trainer.world import Member, WorldError, check_sum, join, me


def main() -> int:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    member = me(rank, world, int(os.environ["LOCAL_RANK"]), os.environ["MASTER_ADDR"])
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, world))
        everyone = join(store, member, timeout_s=float(os.environ.get("SMOKE_TIMEOUT_S", "120")))
        total = check_sum(member)
        say(member, members(everyone))
        say(member, f"\nall-reduce of rank + 1 over {world} ranks: {total:g}, as it should be\n")
        measured = [measure(member, size) for size in sizes(member)]
        say(member, bandwidth.report(measured))
        keep(member, measured)
        dist.destroy_process_group()
    except (WorldError, RuntimeError) as error:
        print(f"smoke: FAILED on {member.host} (rank {rank}): {error}", file=sys.stderr, flush=True)
        return 1
    say(member, "\nsmoke: passed")
    return 0


def members(everyone: Sequence[Member]) -> str:
    rows = [(m.rank, m.host, m.local_rank, m.address, m.device) for m in everyone]
    return table(("rank", "host", "local rank", "address", "device"), rows)


def sizes(member: Member) -> tuple[int, ...]:
    return bandwidth.SIZES if member.device == "cpu" else bandwidth.SIZES + bandwidth.LARGE


def keep(member: Member, measured: Sequence[bandwidth.Measured]) -> None:
    """For the fabric job, which judges the figures."""
    path = os.environ.get("SMOKE_JSON")
    if path and member.rank == 0:
        Path(path).write_text(json.dumps(bandwidth.gigabytes(measured)), encoding="ascii")


def measure(member: Member, size: int) -> bandwidth.Measured:
    tensor = torch.zeros(size // 4, device=member.device)
    count = bandwidth.rounds(size)
    dist.all_reduce(tensor)
    dist.barrier()
    finish(member)
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    finish(member)
    return bandwidth.Measured(size, (time.perf_counter() - began) / count, member.world)


def finish(member: Member) -> None:
    """Collectives on a GPU return before they are done."""
    if member.device != "cpu":
        torch.cuda.synchronize()


def say(member: Member, text: str) -> None:
    if member.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
