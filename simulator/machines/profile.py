"""A profile that `calibrate` wrote: read from its file, validated, and turned into machines and rates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from simulator.machines.profile_fit import RatedSystem, rate_system
from trainer.config.errors import ConfigError, ConfigProblem

SCHEMA = 2
CALIBRATE = "make submit JOB=slurm/jobs/calibrate.sbatch, or torchrun -m simulator.calibrate"
SIZES = ("layers", "dim", "heads", "kv_heads", "ffn", "vocab_size", "seq_len")
"""Sizes of a run's model that a profile must have."""
WORLD_KEYS = (
    "nodes",
    "per_node",
    "products",
    "copied_gb_s",
    "layers",
    "updates",
    "collectives",
    "checkpoint",
    "short_run",
)


@dataclass(frozen=True)
class Profile:
    """One machine as measured, with a measurement (`world`) for each number of nodes and ranks."""

    path: Path
    machine: dict[str, Any]
    worlds: tuple[dict[str, Any], ...]

    @property
    def description(self) -> str:
        """The device and what was measured, for the reader of a prediction."""
        return f"{self.machine['device']} as measured on {self._pairs} ranks ({self.path.name})"

    @property
    def _pairs(self) -> str:
        return ", ".join(f"{world['nodes']} x {world['per_node']}" for world in self.worlds)

    def of(self, nodes: int, per_node: int) -> RatedSystem:
        """Return machines and rates for a job of this size; raise ConfigError if it was not measured."""
        return rate_system(self.machine, self.world(nodes, per_node))

    def world(self, nodes: int, per_node: int) -> dict[str, Any]:
        for world in self.worlds:
            if (world["nodes"], world["per_node"]) == (nodes, per_node):
                return world
        message = f"{nodes} nodes x {per_node} ranks were not measured by {self.path}; allowed: {self._pairs}"
        raise ConfigError([ConfigProblem("profile.worlds", message, f"calibrate with that number: {CALIBRATE}")])


def read(path: Path) -> Profile:
    """Return the profile in a file; raise ConfigError if it cannot be read or is invalid."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); allowed: a file that calibrate wrote"
        raise _error("file", message, f"name another, or make one: {CALIBRATE}") from None
    except (ValueError, RecursionError):
        raise _error("file", f"{path} is not JSON; allowed: a file that calibrate wrote", "name another") from None
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != SCHEMA:
        raise _error("schema", f"{schema!r} in {path}; allowed: {SCHEMA}", f"calibrate again: {CALIBRATE}")
    _check(tree, path)
    return Profile(path, tree["machine"], tuple(tree["worlds"]))


def _check(tree: dict[str, Any], path: Path) -> None:
    worlds = tree.get("worlds")
    if not worlds or "device" not in tree.get("machine", {}):
        raise _error("worlds", f"none in {path}; allowed: one or more", f"calibrate again: {CALIBRATE}")
    device, memory = tree["machine"]["device"], tree["machine"].get("memory_gb")
    if not isinstance(device, str):
        raise _error("machine.device", f"{device!r} in {path}; allowed: a device name", f"calibrate again: {CALIBRATE}")
    if not _above_zero(memory):
        raise _error("machine.memory_gb", f"{memory!r} in {path}; allowed: above 0", f"calibrate again: {CALIBRATE}")
    for world in worlds:
        missing = [name for name in WORLD_KEYS if name not in world]
        if missing:
            where = f"worlds.{missing[0]}"
            raise _error(where, f"missing in {path}; allowed: a number or a table", f"calibrate again: {CALIBRATE}")
        if not world["products"].get("fp32"):
            raise _error(
                "worlds.products.fp32", f"none in {path}; allowed: one or more", f"calibrate again: {CALIBRATE}"
            )
        _check_runs(world, path)
        invalid = [row for rows in world["products"].values() for row in rows if not all(map(_above_zero, row))]
        if invalid or not _above_zero(world["copied_gb_s"]):
            message = f"{invalid[0] if invalid else world['copied_gb_s']} in {path}; allowed: above 0"
            raise _error("worlds.products", message, f"calibrate again: {CALIBRATE}")


def _check_runs(world: dict[str, Any], path: Path) -> None:
    """Check the trainer's own runs; profiles of older versions have only the short one."""
    layers = 0
    for name in ("short_run", "deep_run"):
        if name not in world:
            continue
        if not _is_run(world[name]) or world[name]["model"]["layers"] <= layers:
            message = f"{world[name]!r} in {path}; allowed: a run of more than {layers} layers, sizes and times above 0"
            raise _error(f"worlds.{name}", message, f"calibrate again: {CALIBRATE}")
        layers = world[name]["model"]["layers"]


def _is_run(run: object) -> bool:
    if not isinstance(run, dict) or not isinstance(run.get("model"), dict):
        return False
    sizes = [run["model"].get(name) for name in SIZES]
    return all(map(_above_zero, [*sizes, run.get("step_s"), run.get("samples")]))


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < inf


def _error(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(f"profile.{where}", message, fix)])
