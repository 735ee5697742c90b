"""The machines that a job is clocked on: so many of an instance type as its ranks need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simulator.instances import system, with_gpus
from simulator.system import System
from trainer.config.problem import ConfigError, Problem

_STACKS = Path(__file__).parents[2] / "stacks"


@dataclass(frozen=True)
class Machines:
    instance: str

    @classmethod
    def named(cls, word: str) -> Machines:
        """By instance type, or by a stack: then those of its first group with GPUs that are known."""
        file = _STACKS / f"Pulumi.{word}.yaml"
        found = cls(_of_stack(file, word) if file.exists() else word)
        found.system(1)
        return found

    def per_node(self, ranks: int) -> int:
        return min(ranks, self.system(1).gpus_per_node)

    def system(self, ranks: int) -> System:
        each = system(self.instance, 1).gpus_per_node
        return system(self.instance, -(-ranks // each))

    def problems(self, ranks: int, where: str = "--ranks") -> list[Problem]:
        each = self.per_node(ranks)
        if ranks % each == 0:
            return []
        below = ranks // each * each
        allowed = f"allowed: up to {each}, or a multiple of the {each} GPUs of a {self.instance}"
        return [Problem(where, f"{ranks}; {allowed}", f"use {below} or {below + each}")]


def _of_stack(file: Path, word: str) -> str:
    tree: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    groups = tree["config"]["muster:cluster"].get("groups", {})
    types = [str(group.get("instance_type", "")) for group in groups.values()]
    found = next((one for one in types if one in with_gpus()), None)
    if found is None:
        message = f"{word!r} is a stack without GPUs that are known; allowed: {', '.join(with_gpus())}"
        raise ConfigError([Problem("--system", message, "choose one of them")])
    return found
