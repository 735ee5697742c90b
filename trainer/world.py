"""A world of ranks that has proved itself: everybody came, everybody agrees, and a sum over all of them is right."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

# Half of what is needed has no types, and the words must mean the same where torch is not installed.
dist: Any = torch.distributed
_WORLDS = itertools.count()
_PR_SET_PDEATHSIG = 1


# Everybody has come by then. A rank that keeps the others waiting is the watchdog's business, which names it and saves
# stacks; a long save or a compiler may take its time.
_COLLECTIVE = timedelta(hours=1)


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


@dataclass(frozen=True)
class World:
    """This rank's place among all of them. Alone there is no group and no store."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    device: torch.device
    members: tuple[Member, ...]
    # Gloo, also where training uses NCCL: votes and checkpoints must never wait behind a training collective.
    group: Any = field(default=None, repr=False)
    store: Any = field(default=None, repr=False)

    def close(self) -> None:
        """Leave together: where one rank's end ends the job, the others must have written what they had to write."""
        if self.group is not None:
            dist.barrier(group=self.group)
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.store is not None:
            leave(self.store, self.rank == 0, self.size)


def start(device: str, timeout_s: float, *, hang_folder: Path | None = None, group_of_one: bool = False) -> World:
    """Join the world that torchrun's environment speaks of; without one this process is alone.

    group_of_one: also a process that is alone gets a process group, for strategies that cannot do without.
    """
    if "RANK" not in os.environ:
        return _alone(device, timeout_s, group_of_one)
    _die_with_torchrun()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    master = os.environ["MASTER_ADDR"]
    chosen = choose_device(device, local_rank)
    if chosen != "cpu":
        _record_flights(hang_folder)
    member = Member(rank, world, local_rank, socket.gethostname(), address_towards(master), chosen)
    store = _store_of_this_attempt(rank, master, timeout_s)
    everyone = join(store, member, timeout_s)
    if chosen != "cpu" and hang_folder is not None:
        # NCCL makes none. Not earlier: the first rank looks whether the run's own folder is there before it joins.
        hang_folder.mkdir(parents=True, exist_ok=True)
    control = dist.new_group(backend="gloo", timeout=_COLLECTIVE) if world > 1 else None
    return World(
        rank, world, local_rank, local_size, member.host, torch.device(chosen), tuple(everyone), control, store
    )


def choose_device(wanted: str, local_rank: int) -> str:
    if wanted == "cpu":
        return "cpu"
    found = pick_device(local_rank)
    if wanted == "cuda" and found == "cpu":
        raise WorldError(
            f"run.device=cuda, but local rank {local_rank} on {socket.gethostname()} has no GPU that works "
            f"({torch.cuda.device_count()} seen): use run.device=auto, or start fewer ranks on a node"
        )
    return found


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


def open_store(address: str, port: int, is_master: bool, timeout_s: float) -> Any:
    return dist.TCPStore(address, port, None, is_master, timedelta(seconds=timeout_s), wait_for_workers=False)


def leave(store: Any, is_master: bool, world: int, patience_s: float = 10) -> None:
    """The rank that holds the store goes last: the others still talk to it."""
    store.set_timeout(timedelta(seconds=patience_s))
    deadline = time.monotonic() + patience_s
    gone = store.add("gone", 1)
    while is_master and gone < world and time.monotonic() < deadline:
        time.sleep(0.02)
        gone = store.add("gone", 0)


def join(store: Any, member: Member, timeout_s: float) -> list[Member]:
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
        timeout=max(_COLLECTIVE, timedelta(seconds=timeout_s)),
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


def _alone(device: str, timeout_s: float, group_of_one: bool) -> World:
    host = socket.gethostname()
    member = Member(0, 1, 0, host, "127.0.0.1", choose_device(device, 0))
    store = dist.HashStore() if group_of_one else None
    if store is not None:
        join(store, member, timeout_s)
    elif member.device != "cpu":
        torch.cuda.set_device(torch.device(member.device))
    return World(0, 1, 0, 1, host, torch.device(member.device), (member,))


def _die_with_torchrun() -> None:
    """Ranks have sessions of their own: they would outlive a torchrun that is killed, and go on in the job's name."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _record_flights(folder: Path | None) -> None:
    """NCCL keeps its last collectives and writes them down when one times out.

    torchrun asks for error handling 1, which aborts before anything can be written; 3 leaves the evidence.
    """
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if folder is not None:
        # NCCL appends the rank to the name.
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl-timeout-rank-"))


def _store_of_this_attempt(rank: int, master: str, timeout_s: float) -> Any:
    """torchrun's own store, where it offers one, lives on when ranks are started again and holds the keys of the dead.

    Opened here and not by torch.distributed, which would wait for everybody to connect and then only count them.
    """
    port = int(os.environ["MASTER_PORT"])
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = open_store(master, port, rank == 0 and not of_agent, timeout_s)
    except RuntimeError as error:
        told = str(error).strip().splitlines()[0]
        raise WorldError(
            f"rank 0 did not come: no answer at {master}:{port} within {timeout_s:g} s ({told})"
        ) from error
    # A script may make one trainer after another: each is a world of its own, with the same number on every rank.
    number = next(_WORLDS)
    if not of_agent:
        return dist.PrefixStore(f"world/{number}", store)
    return dist.PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}", store)


def _present(store: Any, member: Member, timeout_s: float) -> list[Member]:
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


def _read(store: Any, key: str) -> Member:
    return Member(**json.loads(store.get(key)))
