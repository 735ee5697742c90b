"""State to save and compare, and the functions that the checkpoint tests run on ranks."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.checkpoint import plan
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.job import SaveEvent
from trainer.checkpoint.newest import GoodCheckpoint

# One dimension is shorter than four ranks, one is not divisible by them.
SHAPES = {"model.wide": (10, 6), "model.short": (3, 4), "model.vector": (7,), "optim.wide.exp_avg": (10, 6)}


def make_state(seed: int = 1) -> dict[str, torch.Tensor]:
    """Return complete tensors, the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    tensors["optim.wide.step"] = torch.tensor(float(seed))
    tensors["buffer.mean"] = torch.randn(5, generator=generator)
    tensors["model.half"] = torch.randn(9, generator=generator).bfloat16()
    return tensors


def make_zeros(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def are_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def make_tensors(size: int, seed: int) -> dict[str, torch.Tensor]:
    """Return a few random tensors of about `size` bytes in total."""
    generator = torch.Generator().manual_seed(seed)
    return {f"model.{n}": torch.randn(size // 16, generator=generator) for n in range(4)}


def save_and_wait(
    checkpoints: Checkpoints, step: int, tensors: dict[str, torch.Tensor], **more: Any
) -> list[SaveEvent]:
    """Save, wait until the save is done, and return its events."""
    checkpoints.save(step, tensors, {"step": step}, **more)
    checkpoints.before_update()
    assert checkpoints.wait(240)
    return checkpoints.poll()


def find_writer(pid: int) -> int:
    """Return the writer process of a process; its command line appears a moment after its start."""
    until = time.monotonic() + 240
    while time.monotonic() < until:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid and b"trainer.checkpoint.writer" in arguments:
                    return int(entry.name)
        time.sleep(0.01)
    raise AssertionError(f"process {pid} has no writer")


def shard_state(layout: str) -> dict[str, torch.Tensor]:
    """Return this rank's part of the state under a layout: plain, fsdp, columns or hsdp."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    tensors = make_state()
    tensors["buffer.mean"] += dist.get_rank()
    if layout == "plain":
        return tensors
    world = dist.get_world_size()
    if layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    for name in (*SHAPES, "model.half"):
        dim = 1 if layout == "columns" and tensors[name].dim() > 1 else 0
        placements = [Replicate(), Shard(dim)] if layout == "hsdp" else [Shard(dim)]
        tensors[name] = distribute_tensor(tensors[name], mesh, placements)
    return tensors


def open_checkpoints(path: Path) -> Checkpoints:
    import torch.distributed as dist

    return Checkpoints(path, rank=dist.get_rank(), world_size=dist.get_world_size(), group=dist.group.WORLD)


def save_as(path: Path, layout: str, step: int, max_index_chunks: int = plan.MAX_INDEX_CHUNKS) -> list[str]:
    """Save the state in this layout; the index is split beyond this number of chunks."""
    import torch.distributed as dist

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "MAX_INDEX_CHUNKS", max_index_chunks)
        return _save(path, layout, step, dist.get_rank())


def _save(path: Path, layout: str, step: int, rank: int) -> list[str]:
    checkpoints = open_checkpoints(path)
    tensors = shard_state(layout)
    checkpoints.check_folder(tensors)
    checkpoints.save(step, tensors, {"step": step}, own={"mine": rank})
    checkpoints.before_update()
    assert checkpoints.wait(240)
    kinds: list[str] = [event.kind for event in checkpoints.poll()]
    checkpoints.close()
    return kinds


def load_as(path: Path, layout: str) -> dict[str, Any]:
    """Load the newest checkpoint and compare it; buffers must be those of rank 0."""
    import torch.distributed as dist

    checkpoints = open_checkpoints(path)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    tensors = shard_state(layout)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    checkpoints.load(checkpoint, tensors)
    whole = {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in tensors.items()
    }
    result = {"step": checkpoint.step, "skipped": checkpoint.skipped, "same": are_equal(whole, make_state())}
    result["own"] = checkpoints.read_own(checkpoint)
    result["rank"] = dist.get_rank()
    checkpoints.close()
    return result


def read_damaged(path: Path, damaged: Path, reads: str) -> str:
    """Read as rank 1 from a damaged checkpoint, and as the others from an intact one; return the error."""
    import torch.distributed as dist

    checkpoints = open_checkpoints(path)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    if dist.get_rank() == 1:
        checkpoint = replace(checkpoint, path=damaged)
    readers: dict[str, Callable[[GoodCheckpoint], object]] = {
        "types": checkpoints.read_types,
        "state": checkpoints.read_state,
        "own": checkpoints.read_own,
        "tensors": lambda checkpoint: checkpoints.load(checkpoint, make_zeros(make_state())),
    }
    try:
        readers[reads](checkpoint)
        dist.barrier()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        checkpoints.close()
    return ""


def save_until_killed(path: Path, size: int, first: int) -> None:
    """Save steps from `first` on, each one twice, until this process is killed."""
    torch.set_num_threads(1)
    checkpoints = Checkpoints(path, keep=2)
    for step in range(first, first + 1000):
        for _ in range(2):
            save_and_wait(checkpoints, step, make_tensors(size, step))


def save_with_bad_rank(path: Path, how: str) -> list[list[str]]:
    """Return the events of each save on this rank: steps 1 and 3 are good, in step 2 the writer of rank 2 fails."""
    import torch.distributed as dist

    checkpoints = open_checkpoints(path)
    tensors = make_tensors(1 << 20, seed=1)
    history = [_kinds(save_and_wait(checkpoints, 1, tensors))]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = find_writer(os.getpid())
    if dist.get_rank() == 2:
        os.kill(writer, signal.SIGSTOP)
        if how == "full":
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (8192, limit[1]))
    checkpoints.save(2, tensors, {})
    checkpoints.before_update()
    if dist.get_rank() == 2:
        os.kill(writer, signal.SIGKILL if how == "killed" else signal.SIGCONT)
    assert checkpoints.wait(240)
    history.append(_kinds(checkpoints.poll()))
    if dist.get_rank() == 2 and how == "full":
        resource.prlimit(writer, resource.RLIMIT_FSIZE, limit)
    history.append(_kinds(save_and_wait(checkpoints, 3, tensors)))
    checkpoints.close()
    return history


def save_behind_a_hanging_writer(path: Path) -> list[list[str]]:
    """Return the events of three saves on this rank: the writer of rank 1 hangs in the first, the second gives up."""
    import torch.distributed as dist

    checkpoints = open_checkpoints(path)
    tensors = make_tensors(1 << 20, seed=1)
    checkpoints.prepare(tensors)
    writer = find_writer(os.getpid())
    if dist.get_rank() == 1:
        os.kill(writer, signal.SIGSTOP)
    checkpoints.save(1, tensors, {})
    checkpoints.save(2, tensors, {}, timeout_s=0.2)
    history = [_kinds(checkpoints.poll())]
    os.kill(writer, signal.SIGCONT)
    assert checkpoints.wait(240)
    history.append(_kinds(checkpoints.poll()))
    history.append(_kinds(save_and_wait(checkpoints, 3, tensors)))
    checkpoints.close()
    return history


def _kinds(events: list[SaveEvent]) -> list[str]:
    return [f"{event.kind}: {event.message}" for event in events]
