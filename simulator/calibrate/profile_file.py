"""The profile as a file: one machine, and a measurement for each number of nodes and ranks that was run on it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from trainer import host
from trainer.world import World

SCHEMA = 2
IDENTITY = ("device", "cpu", "cores", "threads")
"""Properties that must be equal for two measurements to be of the same kind of machine."""


class OtherMachineError(Exception):
    """The file is not a profile, or is the profile of another machine; the message says what to do."""


def identify(world: World) -> dict[str, Any]:
    """Return what a profile records about the machine that this rank runs on."""
    on_gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if on_gpu else "cpu",
        "memory_gb": _gpu_gb(world.device) if on_gpu else _host_gb(),
        "multiprocessors": torch.cuda.get_device_properties(world.device).multi_processor_count if on_gpu else 1,
        "cpu": host.processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "backend": "nccl" if on_gpu else "gloo",
        "hosts": sorted({member.host for member in world.members}) or [world.host],
    }


def check(path: Path, machine: dict[str, Any]) -> None:
    """Raise OtherMachineError if the file cannot take measurements of this machine; called before measuring."""
    _read(path, machine)


def write(path: Path, machine: dict[str, Any], world: dict[str, Any], stack: str) -> None:
    """Add a measurement to the file, next to those of other numbers of nodes and ranks."""
    before = _read(path, machine)
    others = [other for other in before.get("worlds", []) if _size(other) != _size(world)]
    profile = {
        "schema": SCHEMA,
        "stack": stack or before.get("stack", ""),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "worlds": sorted([*others, world], key=_size),
    }
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _size(world: dict[str, Any]) -> tuple[int, int]:
    return world["nodes"], world["per_node"]


def _read(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        profile: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        schema = profile["schema"]
        different = [name for name in IDENTITY if profile["machine"][name] != machine[name]]
    except (ValueError, KeyError, TypeError):
        message = f"--out: {path} is not a profile; allowed: a profile or a new file; name another file"
        raise OtherMachineError(message) from None
    if schema != SCHEMA:
        raise OtherMachineError(f"--out: {path} has schema {schema!r}; allowed: {SCHEMA}; name another file")
    if different:
        name = different[0]
        old, new = profile["machine"][name], machine[name]
        message = f"--out: {path} is a profile of {name} {old!r}; allowed: {new!r}, this machine; name another file"
        raise OtherMachineError(message)
    return profile


def _gpu_gb(device: torch.device) -> float:
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)


def _host_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
