"""The smoke job, started by torchrun: list the ranks, check the result of an all-reduce, measure the network."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainer import bandwidth
from trainer.table import table
from trainer.world import Member, WorldError, check_sum, describe_member, join


def main() -> int:
    """Run the job on this rank and return the exit status."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        member = describe_member(rank, world, int(os.environ["LOCAL_RANK"]), os.environ["MASTER_ADDR"])
        store, _, _ = next(dist.rendezvous("env://", rank, world))
        members = join(store, member, timeout_s=float(os.environ.get("SMOKE_TIMEOUT_S", "120")))
        total = check_sum(member)
        _print_once(member, _format_members(members))
        _print_once(member, f"\nall-reduce of rank + 1 over {world} ranks: {total:g} (correct)\n")
        sizes = bandwidth.SIZES if member.device == "cpu" else bandwidth.SIZES + bandwidth.LARGE
        times = [_measure(member, size) for size in sizes]
        _print_once(member, bandwidth.format_report(times))
        _write_json(member, times)
        dist.destroy_process_group()
    except (WorldError, RuntimeError) as error:
        print(f"smoke: FAILED on {socket.gethostname()} (rank {rank}): {error}", file=sys.stderr, flush=True)
        return 1
    _print_once(member, "\nsmoke: passed")
    return 0


def _format_members(members: Sequence[Member]) -> str:
    rows = [(m.rank, m.host, m.local_rank, m.address, m.device) for m in members]
    return table(("rank", "host", "local rank", "address", "device"), rows)


def _write_json(member: Member, times: Sequence[bandwidth.AllReduceTime]) -> None:
    """Write the bandwidths for the fabric job, which judges them."""
    path = os.environ.get("SMOKE_JSON")
    if path and member.rank == 0:
        Path(path).write_text(json.dumps(bandwidth.bus_gigabytes(times)), encoding="ascii")


def _measure(member: Member, size: int) -> bandwidth.AllReduceTime:
    tensor = torch.zeros(size // 4, device=member.device)
    rounds = bandwidth.count_rounds(size)
    dist.all_reduce(tensor)
    dist.barrier()
    _synchronize(member)
    began = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(tensor)
    _synchronize(member)
    return bandwidth.AllReduceTime(size, (time.perf_counter() - began) / rounds, member.world)


def _synchronize(member: Member) -> None:
    """Wait for the device: collectives on a GPU return before they are done."""
    if member.device != "cpu":
        torch.cuda.synchronize()


def _print_once(member: Member, text: str) -> None:
    if member.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
