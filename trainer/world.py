"""Join the ranks of a run: check that they agree on its size and devices, and check a sum over all of them."""

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

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
_WORLD_NUMBERS = itertools.count()
_PR_SET_PDEATHSIG = 1

# Long, because a save or a compiler may legitimately keep other ranks waiting. The watchdog detects a rank that hangs:
# it names the rank and writes stacks.
_COLLECTIVE_TIMEOUT = timedelta(hours=1)
_LEAVE_TIMEOUT_S = 10.0
UNKNOWN_HOST = "an unknown host"


class WorldError(Exception):
    """Raised if the ranks cannot form a world; the message names ranks and hosts."""

    def __init__(self, message: str, missing: Sequence[tuple[int, str]] = ()) -> None:
        """`missing` are the ranks that did not join, with their hosts."""
        super().__init__(message)
        self.missing = tuple(missing)


class DeviceError(WorldError):
    """Raised if a rank has a GPU that it cannot use; the message names the GPU, its host and the reason."""


@dataclass(frozen=True)
class Member:
    """A rank as it introduces itself to the others."""

    rank: int
    world: int
    """Number of ranks that this rank expects."""
    local_rank: int
    host: str
    address: str
    device: str


@dataclass(frozen=True)
class World:
    """This rank's place among all ranks. A single process has no group and no store."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    device: torch.device
    members: tuple[Member, ...]
    group: Any = field(default=None, repr=False)
    """A gloo group, even if training uses NCCL: votes and saves must never wait behind a training collective."""
    store: Any = field(default=None, repr=False)

    def close(self) -> None:
        """Leave the process group when all ranks are ready to, because the exit of one rank may end the job."""
        if self.group is not None:
            dist.barrier(group=self.group)
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.store is not None:
            leave(self.store, self.rank == 0, self.size)


def start(device: str, timeout_s: float, *, hang_folder: Path | None = None, group_of_one: bool = False) -> World:
    """Join the world that torchrun's environment variables describe; without them, this process is alone.

    With `group_of_one`, a process that is alone gets a process group too, for strategies that need one.
    """
    if "RANK" not in os.environ:
        return _start_alone(device, timeout_s, group_of_one)
    _die_with_torchrun()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    master = os.environ["MASTER_ADDR"]
    chosen = choose_device(device, local_rank)
    if chosen != "cpu":
        _record_collectives(hang_folder)
    member = Member(rank, world, local_rank, socket.gethostname(), find_address_towards(master), chosen)
    store = _open_store_of_attempt(rank, master, timeout_s)
    members = join(store, member, timeout_s)
    if chosen != "cpu" and hang_folder is not None:
        # NCCL does not create the folder. It is created after joining, because rank 0 checks before whether it exists.
        hang_folder.mkdir(parents=True, exist_ok=True)
    control = dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT) if world > 1 else None
    return World(rank, world, local_rank, local_size, member.host, torch.device(chosen), tuple(members), control, store)


def choose_device(requested: str, local_rank: int) -> str:
    """Return the device of this rank for the setting `run.device`: auto, cpu or cuda."""
    if requested == "cpu":
        return "cpu"
    device = detect_device(local_rank)
    if requested == "cuda" and device == "cpu":
        raise DeviceError(
            f"run.device=cuda, but local rank {local_rank} on {socket.gethostname()} has no GPU "
            f"({torch.cuda.device_count()} visible): use run.device=auto, or start fewer ranks per node"
        )
    return device


def describe_member(rank: int, world: int, local_rank: int, master: str) -> Member:
    """Return this rank as a member, with the device that it detects."""
    host, address = socket.gethostname(), find_address_towards(master)
    return Member(rank, world, local_rank, host, address, detect_device(local_rank))


def detect_device(local_rank: int) -> str:
    """Return the GPU of this rank if torch finds one, otherwise the CPU.

    A GPU that is broken or full is an error: training on the CPU instead would go unnoticed, and take forever.
    Simulated GPUs set CUDA_VISIBLE_DEVICES too, but torch finds none of them.
    """
    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        return "cpu"
    try:
        torch.zeros(1, device=f"cuda:{local_rank}")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(
            f"GPU {local_rank} on {socket.gethostname()} cannot be used: {reason}: end the processes that hold its "
            f"memory (nvidia-smi lists them), or train on the CPU with run.device=cpu"
        ) from error
    return f"cuda:{local_rank}"


def find_address_towards(master: str) -> str:
    """Return this host's address on the route to the master; a name lookup could return 127.0.1.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def open_store(address: str, port: int, is_master: bool, timeout_s: float) -> Any:
    """Return the key-value store that all ranks share; the master serves it."""
    return dist.TCPStore(address, port, None, is_master, timedelta(seconds=timeout_s), wait_for_workers=False)


def leave(store: Any, is_master: bool, world: int, timeout_s: float = _LEAVE_TIMEOUT_S) -> None:
    """Leave the store; the rank that serves it leaves last, because the others still need it."""
    store.set_timeout(timedelta(seconds=timeout_s))
    deadline = time.monotonic() + timeout_s
    gone = store.add("gone", 1)
    while is_master and gone < world and time.monotonic() < deadline:
        time.sleep(0.02)
        gone = store.add("gone", 0)


def join(store: Any, member: Member, timeout_s: float) -> list[Member]:
    """Start the process group and return its members.

    Each rank registers in the store first, so that a rank that does not join can be named.
    """
    members = _register(store, member, timeout_s)
    problem = find_disagreement(members)
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
        timeout=max(_COLLECTIVE_TIMEOUT, timedelta(seconds=timeout_s)),
    )
    return members


def check_sum(member: Member) -> float:
    """All-reduce rank + 1, as a number and as the factor of a vector; raise WorldError if the result is wrong."""
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


def find_disagreement(members: Sequence[Member]) -> str:
    """Return why these members cannot form a world, or an empty string."""
    worlds = {m.world for m in members}
    if len(worlds) > 1:
        expected = ", ".join(f"rank {m.rank} on {m.host} expects {m.world}" for m in members)
        return f"ranks disagree on the number of ranks: {expected}"
    backends = {m.device.split(":")[0] for m in members}
    if len(backends) > 1:
        without = ", ".join(f"rank {m.rank} on {m.host}" for m in members if m.device == "cpu")
        return f"some ranks have a GPU, but these have none: {without}"
    return ""


def list_missing_ranks(present: Sequence[Member], world: int, per_host: int) -> list[tuple[int, str]]:
    """Return the ranks that did not join, with the host if another rank on it joined, otherwise UNKNOWN_HOST."""
    joined = {m.rank for m in present}
    hosts = {m.rank // per_host: m.host for m in present}
    return [(rank, hosts.get(rank // per_host, UNKNOWN_HOST)) for rank in range(world) if rank not in joined]


def _start_alone(device: str, timeout_s: float, group_of_one: bool) -> World:
    host = socket.gethostname()
    member = Member(0, 1, 0, host, "127.0.0.1", choose_device(device, 0))
    store = dist.HashStore() if group_of_one else None
    if store is not None:
        join(store, member, timeout_s)
    elif member.device != "cpu":
        torch.cuda.set_device(torch.device(member.device))
    return World(0, 1, 0, 1, host, torch.device(member.device), (member,))


def _die_with_torchrun() -> None:
    """Let the kernel kill this process when torchrun dies: ranks have their own sessions and would continue to run."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _record_collectives(folder: Path | None) -> None:
    """Let NCCL record its last collectives and write them when one times out.

    torchrun sets error handling to 1, which aborts before anything is written; 3 allows the collectives to be written.
    """
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if folder is not None:
        # NCCL appends the rank to the name.
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl-timeout-rank-"))


def _open_store_of_attempt(rank: int, master: str, timeout_s: float) -> Any:
    """Return a store for this start of the ranks.

    torchrun's own store, if it offers one, survives restarts of the ranks and holds the keys of dead ranks. It is
    opened here and not by torch.distributed, which would wait for all ranks and could not name those that are missing.
    """
    port = int(os.environ["MASTER_PORT"])
    is_agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = open_store(master, port, rank == 0 and not is_agent_store, timeout_s)
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[0]
        raise WorldError(
            f"rank 0 did not join: no answer from {master}:{port} within {timeout_s:g} s ({cause})", [(0, master)]
        ) from error
    # A script may create several trainers one after the other: each has its own number, the same on every rank.
    number = next(_WORLD_NUMBERS)
    if not is_agent_store:
        return dist.PrefixStore(f"world/{number}", store)
    return dist.PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}", store)


def _register(store: Any, member: Member, timeout_s: float) -> list[Member]:
    """Register this rank, wait for the others and return all members."""
    store.set(f"member/{member.rank}", json.dumps(asdict(member)))
    keys = [f"member/{rank}" for rank in range(member.world)]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        present = [_read_member(store, key) for key in keys if store.check([key])]
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        missing = list_missing_ranks(present, member.world, per_host)
        names = ", ".join(f"rank {rank}" + f" on {host}" * (host != UNKNOWN_HOST) for rank, host in missing)
        raise WorldError(f"did not join within {round(timeout_s, 1):g} s: {names}", missing) from error
    return [_read_member(store, key) for key in keys]


def _read_member(store: Any, key: str) -> Member:
    return Member(**json.loads(store.get(key)))
