"""A world of ranks that has proved itself: everybody came, everybody agrees, and a sum over all of them is right."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


class WorldError(Exception):
    """Something is off; the message names the ranks and hosts."""


@dataclass(frozen=True)
class Member:
    rank: int
    world: int
    local_rank: int
    host: str
    address: str
    device: str


def me(rank: int, world: int, local_rank: int, master: str) -> Member:
    return Member(rank, world, local_rank, socket.gethostname(), address_towards(master), pick_device(local_rank))


def pick_device(local_rank: int) -> str:
    """The GPU of this rank if torch can really use it, else the CPU.

    Simulated GPUs set CUDA_VISIBLE_DEVICES too, so only an allocation that works counts.
    """
    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        return "cpu"
    try:
        torch.zeros(1, device=f"cuda:{local_rank}")
    except RuntimeError:
        return "cpu"
    return f"cuda:{local_rank}"


def address_towards(master: str) -> str:
    """This host's own address on the way to the master: no name lookup of ours, so never 127.0.1.1 by accident."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def open_store(address: str, port: int, is_master: bool, timeout_s: float) -> dist.Store:
    return dist.TCPStore(address, port, None, is_master, timedelta(seconds=timeout_s), wait_for_workers=False)


def leave(store: dist.Store, is_master: bool, world: int) -> None:
    """The rank that holds the store goes last: the others still talk to it."""
    store.set_timeout(timedelta(seconds=10))
    gone = store.add("gone", 1)
    while is_master and gone < world:
        time.sleep(0.02)
        gone = store.add("gone", 0)


def join(store: dist.Store, member: Member, timeout_s: float) -> list[Member]:
    """Start the process group; each rank signs the store first, so that one who does not come can be named."""
    everyone = _present(store, member, timeout_s)
    problem = disagreement(everyone)
    if problem:
        raise WorldError(problem)
    device = torch.device(member.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=member.rank,
        world_size=member.world,
        timeout=timedelta(seconds=timeout_s),
    )
    return everyone


def check_sum(member: Member) -> float:
    """All-reduce rank + 1, alone and times a ramp; a wrong value anywhere is an error on the rank that sees it."""
    expected = member.world * (member.world + 1) / 2
    ramp = torch.arange(1024, dtype=torch.float32)
    total = torch.full((1,), member.rank + 1.0, device=member.device)
    vector = ramp.to(member.device) * (member.rank + 1)
    dist.all_reduce(total)
    dist.all_reduce(vector)
    if total.item() != expected:
        raise WorldError(
            f"rank {member.rank} on {member.host}: all-reduce gave {total.item():g} instead of {expected:g}"
        )
    wrong = int((vector.cpu() != ramp * expected).sum())
    if wrong:
        raise WorldError(
            f"rank {member.rank} on {member.host}: all-reduce of a vector is wrong in {wrong} of {len(ramp)} places"
        )
    return float(total.item())


def disagreement(everyone: Sequence[Member]) -> str:
    """Why these members are not one world, or nothing."""
    worlds = {m.world for m in everyone}
    if len(worlds) > 1:
        seen = ", ".join(f"rank {m.rank} on {m.host} sees {m.world}" for m in everyone)
        return f"ranks disagree on the size of the world: {seen}"
    backends = {m.device.split(":")[0] for m in everyone}
    if len(backends) > 1:
        without = ", ".join(f"rank {m.rank} on {m.host}" for m in everyone if m.device == "cpu")
        return f"some ranks have a GPU and these have none: {without}"
    return ""


def missing_ranks(present: Sequence[Member], world: int, per_host: int) -> str:
    """Who did not come; its host is known where a rank next to it did."""
    came = {m.rank for m in present}
    hosts = {m.rank // per_host: m.host for m in present}
    names = []
    for rank in sorted(set(range(world)) - came):
        host = hosts.get(rank // per_host)
        names.append(f"rank {rank} on {host}" if host else f"rank {rank}")
    return ", ".join(names)


def _present(store: dist.Store, member: Member, timeout_s: float) -> list[Member]:
    store.set(f"member/{member.rank}", json.dumps(asdict(member)))
    keys = [f"member/{rank}" for rank in range(member.world)]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        present = [_read(store, key) for key in keys if store.check([key])]
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        missing = missing_ranks(present, member.world, per_host)
        raise WorldError(f"did not join within {timeout_s:g} s: {missing}") from error
    return [_read(store, key) for key in keys]


def _read(store: dist.Store, key: str) -> Member:
    return Member(**json.loads(store.get(key)))
