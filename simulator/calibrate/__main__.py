"""`python -m simulator.calibrate [--out profile.json]`: measures with all ranks of the job, or with this process alone.

torchrun --nproc-per-node 4 -m simulator.calibrate --out profile.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from simulator.calibrate import arithmetic, exchanges, parts, profile_file, saves, short_runs
from simulator.calibrate.identity import identity
from simulator.calibrate.options import arguments
from simulator.calibrate.ranks import Ranks
from trainer.world import World, WorldError, start


def main(words: list[str]) -> int:
    asked = arguments(words)
    try:
        _calibrate(asked)
    except (WorldError, profile_file.OtherMachineError, saves.SaveError, OSError) as bad:
        print(f"simulator: {bad}", file=sys.stderr, flush=True)
        return 2
    return 0


def _calibrate(asked: argparse.Namespace) -> None:
    world = start(asked.device, timeout_s=300)
    machine = identity(world)
    profile_file.check(asked.out, machine)
    scratch = asked.out.absolute().with_name(f"{asked.out.name}.{os.environ.get('TORCHELASTIC_RUN_ID', 'alone')}.tmp")
    try:
        found = _measure(Ranks(world, asked.seconds, _show), scratch)
        world.close()
        _say(world, "5/5 the trainer on the smallest models")
        for name, layers in short_runs.LAYERS.items():
            short_runs.short_run(scratch / name, layers, world, found["precision"])
            if world.rank == 0:
                found[name] = short_runs.what_it_took(scratch / name, layers)
    finally:
        if world.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    if world.rank == 0:
        profile_file.write(asked.out, machine, found, asked.stack)
        _say(world, f"written: {asked.out}")


def _measure(ranks: Ranks, scratch: Path) -> dict[str, Any]:
    world = ranks.world
    nodes = world.size // world.local_size
    precision = "bf16" if ranks.device.type == "cuda" else "fp32"
    _say(world, f"{_many(nodes, 'node')} x {_many(world.local_size, 'rank')} on {ranks.device.type}")
    _say(world, "1/5 products")
    found: dict[str, Any] = {"nodes": nodes, "per_node": world.local_size, "per_core": ranks.per_core}
    found["products"] = arithmetic.products(ranks)
    _say(world, "2/5 memory, launches, layers")
    found |= {"copied_gb_s": arithmetic.copied_gb_s(ranks), "launch_us": arithmetic.launch_us(ranks)}
    found |= {"precision": precision, "layers": parts.layers(ranks, precision), "updates": parts.updates(ranks)}
    _say(world, "3/5 collectives")
    found |= {"collectives": exchanges.collectives(ranks), "slowed": exchanges.slowed(ranks)}
    found["spread"] = _spread(ranks)
    _say(world, "4/5 checkpoints")
    found["checkpoint"] = saves.saves(ranks, scratch / "checkpoints")
    return found


def _spread(ranks: Ranks) -> float:
    """How much longer the slowest rank takes than the mean one, in the quietest quarter of many tries."""
    import torch  # noqa: PLC0415

    one = torch.rand(256, 256, device=ranks.device)
    tries = [ranks.all(ranks.timed(lambda: torch.mm(one, one), 20)) for _ in range(15)]
    return quantiles([max(times) / mean(times) - 1 for times in tries], n=4)[0]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _show(figure: int) -> None:
    """For whoever watches; the next line takes its place."""
    if sys.stdout.isatty():
        print(f"figure {figure} ", end="\r", flush=True)


def _say(world: World, text: str) -> None:
    if world.rank == 0:
        print(f"calibrate: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
