"""`python -m simulator.calibrate [--out profile.json]`: measure with all ranks of the job, or with this process alone.

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

import torch

from simulator.calibrate import arithmetic, exchanges, parts, profile_file, saves, short_runs
from simulator.calibrate.options import parse_options
from simulator.calibrate.ranks import Ranks
from trainer.world import World, WorldError, start


def main(arguments: list[str], error_prefix: str = "simulator") -> int:
    """Run the command and return its exit status."""
    options = parse_options(arguments)
    try:
        _calibrate(options)
    except (WorldError, profile_file.OtherMachineError, saves.SaveError, OSError) as error:
        print(f"{error_prefix}: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def _calibrate(options: argparse.Namespace) -> None:
    world = start(options.device, timeout_s=300)
    machine = profile_file.identify(world)
    profile_file.check(options.out, machine)
    scratch = options.out.absolute().with_name(
        f"{options.out.name}.{os.environ.get('TORCHELASTIC_RUN_ID', 'alone')}.tmp"
    )
    try:
        results = _measure(Ranks(world, options.seconds, _show_figure), scratch)
        world.close()
        _report(world, "5/5 the trainer on the smallest models")
        for name, layers in short_runs.LAYERS.items():
            short_runs.run_trainer(scratch / name, layers, world, results["precision"])
            if world.rank == 0:
                results[name] = short_runs.read_times(scratch / name, layers)
    finally:
        if world.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    if world.rank == 0:
        profile_file.write(options.out, machine, results, options.stack)
        _report(world, f"written: {options.out}")


def _measure(ranks: Ranks, scratch: Path) -> dict[str, Any]:
    world = ranks.world
    nodes = world.size // world.local_size
    precision = "bf16" if ranks.device.type == "cuda" else "fp32"
    _report(world, f"{_count(nodes, 'node')} x {_count(world.local_size, 'rank')} on {ranks.device.type}")
    _report(world, "1/5 products")
    results: dict[str, Any] = {"nodes": nodes, "per_node": world.local_size, "per_core": ranks.per_core}
    results["products"] = arithmetic.measure_products(ranks)
    _report(world, "2/5 memory, launches, layers")
    results |= {"copied_gb_s": arithmetic.measure_copy_gb_s(ranks), "launch_us": arithmetic.measure_launch_us(ranks)}
    results |= {
        "precision": precision,
        "layers": parts.measure_layers(ranks, precision),
        "updates": parts.measure_updates(ranks),
    }
    _report(world, "3/5 collectives")
    results |= {"collectives": exchanges.measure_collectives(ranks), "slowed": exchanges.measure_slowdown(ranks)}
    results["spread"] = _spread(ranks)
    _report(world, "4/5 checkpoints")
    results["checkpoint"] = saves.measure_saves(ranks, scratch / "checkpoints")
    return results


def _spread(ranks: Ranks) -> float:
    """Return how much slower the slowest rank is than the mean, as a share, in the least disturbed quarter of tries."""
    matrix = torch.rand(256, 256, device=ranks.device)
    tries = [ranks.all(ranks.timed(lambda: torch.mm(matrix, matrix), 20)) for _ in range(15)]
    return quantiles([max(times) / mean(times) - 1 for times in tries], n=4)[0]


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _show_figure(figure: int) -> None:
    """Show the number of the current figure on a terminal; the next line replaces it."""
    if sys.stdout.isatty():
        print(f"figure {figure} ", end="\r", flush=True)


def _report(world: World, text: str) -> None:
    if world.rank == 0:
        print(f"calibrate: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
