"""A profile that `calibrate` wrote, as machines and rates to predict with; one of other machines is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from simulator.machines.profile_fit import Calibrated, calibrated
from trainer.config.errors import ConfigError, ConfigProblem

SCHEMA = 2
CALIBRATE = "make submit JOB=slurm/jobs/calibrate.sbatch, or torchrun -m simulator.calibrate"
SIZES = ("layers", "dim", "heads", "kv_heads", "ffn", "vocab_size", "seq_len")
"""Of the model of a run."""
NEEDED = ("nodes", "per_node", "products", "copied_gb_s", "layers", "updates", "collectives", "checkpoint", "short_run")


@dataclass(frozen=True)
class Profile:
    path: Path
    machine: dict[str, Any]
    worlds: tuple[dict[str, Any], ...]

    @property
    def told(self) -> str:
        """What it is of, for whoever reads a prediction."""
        measured = ", ".join(f"{one['nodes']} x {one['per_node']}" for one in self.worlds)
        return f"{self.machine['device']} as measured on {measured} ranks ({self.path.name})"

    def of(self, nodes: int, per_node: int) -> Calibrated:
        """For a job of so many nodes and ranks: those that were measured, and no others."""
        return calibrated(self.machine, self.world(nodes, per_node))

    def world(self, nodes: int, per_node: int) -> dict[str, Any]:
        for world in self.worlds:
            if (world["nodes"], world["per_node"]) == (nodes, per_node):
                return world
        allowed = ", ".join(f"{one['nodes']} x {one['per_node']}" for one in self.worlds)
        message = f"{nodes} nodes x {per_node} ranks were not measured by {self.path}; allowed: {allowed}"
        raise ConfigError([ConfigProblem("profile.worlds", message, f"calibrate with as many: {CALIBRATE}")])


def read(path: Path) -> Profile:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as bad:
        message = f"{path} cannot be read ({bad.strerror}); allowed: a file that calibrate wrote"
        raise _bad("file", message, f"name another, or make one: {CALIBRATE}") from None
    except (ValueError, RecursionError):
        raise _bad("file", f"{path} is no JSON; allowed: what calibrate writes", "name another") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        was = found.get("schema") if isinstance(found, dict) else None
        raise _bad("schema", f"{was!r} in {path}; allowed: {SCHEMA}", f"calibrate again: {CALIBRATE}")
    _check(found, path)
    return Profile(path, found["machine"], tuple(found["worlds"]))


def _check(found: dict[str, Any], path: Path) -> None:
    worlds = found.get("worlds")
    if not worlds or "device" not in found.get("machine", {}):
        raise _bad("worlds", f"none in {path}; allowed: one or more", f"calibrate again: {CALIBRATE}")
    device, memory = found["machine"]["device"], found["machine"].get("memory_gb")
    if not isinstance(device, str):
        raise _bad("machine.device", f"{device!r} in {path}; allowed: its name", f"calibrate again: {CALIBRATE}")
    if not _above_zero(memory):
        raise _bad("machine.memory_gb", f"{memory!r} in {path}; allowed: above 0", f"calibrate again: {CALIBRATE}")
    for world in worlds:
        missing = [name for name in NEEDED if name not in world]
        if missing:
            where = f"worlds.{missing[0]}"
            raise _bad(where, f"missing in {path}; allowed: a number or a table", f"calibrate again: {CALIBRATE}")
        if not world["products"].get("fp32"):
            raise _bad("worlds.products.fp32", f"none in {path}; allowed: one or more", f"calibrate again: {CALIBRATE}")
        _check_runs(world, path)
        wrong = [row for rows in world["products"].values() for row in rows if not all(map(_above_zero, row))]
        if wrong or not _above_zero(world["copied_gb_s"]):
            message = f"{wrong[0] if wrong else world['copied_gb_s']} in {path}; allowed: above 0"
            raise _bad("worlds.products", message, f"calibrate again: {CALIBRATE}")


def _check_runs(world: dict[str, Any], path: Path) -> None:
    """Of the trainer: older profiles have but the short one."""
    layers = 0
    for name in ("short_run", "deep_run"):
        if name not in world:
            continue
        if not _is_run(world[name]) or world[name]["model"]["layers"] <= layers:
            message = f"{world[name]!r} in {path}; allowed: a run of more than {layers} layers, sizes and times above 0"
            raise _bad(f"worlds.{name}", message, f"calibrate again: {CALIBRATE}")
        layers = world[name]["model"]["layers"]


def _is_run(found: object) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        return False
    sizes = [found["model"].get(name) for name in SIZES]
    return all(map(_above_zero, [*sizes, found.get("step_s"), found.get("samples")]))


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _bad(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(f"profile.{where}", message, fix)])
