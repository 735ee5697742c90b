"""`python -m simulator emulate --ranks N [CONFIG [key=value ...]]`: a job of N GPUs, numbers real, clock modelled."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.commands.refused import refused
from simulator.emulate import refuse
from simulator.emulate.clock import Clock
from simulator.emulate.costs import Modelled
from simulator.emulate.picture import draw
from simulator.emulate.record import Line, table, write
from simulator.emulate.reduce import ALGORITHMS, rounds_of, traffic
from simulator.emulate.scaling import scaling
from simulator.job import Job
from simulator.machines.clocked import Clocked, clocked
from simulator.machines.profile import read
from trainer.config.check import check_world
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import load, to_dict
from trainer.config.schema import Config

if TYPE_CHECKING:
    from simulator.emulate.run import Emulation

ABOUT = """A job of N GPUs in this process: its numbers are real, its clock is modelled.

It needs torch, which .venv does not have; in an environment with the trainer's packages:
  python3 -m venv .venv-torch && .venv-torch/bin/pip install '.[trainer,simulator]'
  .venv-torch/bin/python -m simulator emulate --ranks 256"""
_USUAL = "p5.48xlarge"
_MOST_JITTER = 1.0
_SMALL, _SMALL_BATCH = "tiny-llama", 8
_FLOAT = 4


def main(words: list[str]) -> int:
    options = _parser().parse_intermixed_args(words)
    try:
        machines, config = _checked(options)
        _run(config, machines, options)
    except ConfigError as error:
        return refused(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m simulator emulate", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help=f"preset of the trainer or YAML file ({_SMALL})")
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings, as for `python -m trainer`")
    parser.add_argument("--ranks", type=int, required=True, help="GPUs of the job: 4, 16, 256, ...")
    parser.add_argument("--system", help=f"instance type or stack that is clocked ({_USUAL})")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="clocked as calibrate measured them, or their GPU")
    parser.add_argument("--jitter", type=float, help="draw each rank's speed with this deviation, such as 0.02")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ring", help="order of sums; ring is that of gloo")
    parser.add_argument("--out", type=Path, help="folder for emulate.json and emulate.png (runs/emulate-NAME-RANKS)")
    return parser


def _checked(options: argparse.Namespace) -> tuple[Clocked, Config]:
    """All that can be wrong and needs no torch to be seen."""
    # Without a config: a sample for each rank, and as many steps as a person waits for.
    small = [f"batch.size={max(_SMALL_BATCH, options.ranks)}", "steps=5"]
    config = load(options.config, options.settings) if options.config else load(_SMALL, small)
    found = refuse.problems(config, options.ranks)
    jitter = options.jitter
    if jitter is not None and not (math.isfinite(jitter) and 0 <= jitter <= _MOST_JITTER):
        found.append(ConfigProblem("--jitter", f"{jitter}; allowed: 0 to {_MOST_JITTER:g}", "0.02 is a busy cluster"))
    if found:
        raise ConfigError(found)
    machines = clocked(options.system, read(options.profile) if options.profile else None, _USUAL)
    # Efficiency is against one rank.
    found = machines.problems(options.ranks) or machines.problems(1, "--profile: one rank")
    found = found or check_world(config, options.ranks, machines.per_node(options.ranks))
    if found:
        raise ConfigError(found)
    return machines, config


def _run(config: Config, machines: Clocked, options: argparse.Namespace) -> None:
    ranks = options.ranks
    out = _folder(options.out or Path("runs") / f"emulate-{config.name}-{ranks}")
    emulation = _emulation(config, machines, options)
    job = Job(emulation.config, emulation.micro, config.batch.size // ranks)
    on = f"{machines.system(ranks).nodes} x {machines.name}"
    print(f"{ranks} ranks of {config.name}: the numbers are real, the clock is modelled on {on}")
    prediction = Modelled(job, machines).prediction(ranks)
    for note in [*emulation.why, *([] if prediction.fits else [f"DOES NOT FIT a real GPU: {prediction.reason}"])]:
        print(f"  {note}")
    lines = []
    for line in _steps(emulation, job, machines, options):
        print(line.text(config.steps, job.unit), flush=True)
        lines.append(line)
    rows = scaling(job, machines, emulation.group.sizes, ranks)
    print(f"\n{table(rows, job.unit)}")
    write(out / "emulate.json", _about(emulation, job, machines, options), lines, rows)
    draw(out / "emulate.png", f"{config.name}: {ranks} ranks on {machines.name}, modelled", lines, rows)
    print(f"\n{out / 'emulate.json'}\n{out / 'emulate.png'}")


def _folder(path: Path) -> Path:
    """Made first: whether it can be written to is better known before the run than after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{path} cannot be made ({error.strerror}); allowed: a folder that can be written to"
        raise ConfigError([ConfigProblem("--out", message, "name another with --out")]) from error
    return path


def _emulation(config: Config, machines: Clocked, options: argparse.Namespace) -> Emulation:
    try:
        from simulator.emulate.run import Emulation  # noqa: PLC0415  # torch, only now
    except ModuleNotFoundError as missing:
        message = f"{missing.name} is not installed; allowed: an environment with the trainer's packages"
        raise ConfigError([ConfigProblem("emulate", message, "`emulate --help` has the commands")]) from missing
    return Emulation(config, options.ranks, machines.per_node(options.ranks), options.algorithm, _show_rank)


def _show_rank(rank: int) -> None:
    """For whoever watches; the line of the step takes its place."""
    if sys.stdout.isatty():
        print(f"rank {rank:>4} ", end="\r", flush=True)


def _steps(emulation: Emulation, job: Job, machines: Clocked, options: argparse.Namespace) -> Iterator[Line]:
    costs = Modelled(job, machines)
    clock = Clock(costs, options.ranks, options.jitter, seed=job.config.run.seed)
    alone_s = Clock(costs, 1).step([]).step_s
    for step in range(1, job.config.steps + 1):
        learned = emulation.step()
        tick = clock.step(emulation.group.sizes)
        yield Line(
            step=step,
            **asdict(learned),
            now_s=clock.now,
            units_per_s=job.units(options.ranks) / tick.step_s,
            efficiency=alone_s / tick.step_s,
            tick=tick,
        )


def _about(emulation: Emulation, job: Job, machines: Clocked, options: argparse.Namespace) -> dict[str, Any]:
    ranks = options.ranks
    return {
        "ranks": ranks,
        "machines": {"instance": machines.name, "nodes": machines.system(ranks).nodes},
        "algorithm": options.algorithm,
        "jitter": options.jitter,
        "micro": job.micro,
        "unit": job.unit,
        "chosen": emulation.why,
        "config": to_dict(emulation.config),
        "all_reduces": [_all_reduce(size, job, machines, options) for size in emulation.group.sizes],
    }


def _all_reduce(size: int, job: Job, machines: Clocked, options: argparse.Namespace) -> dict[str, Any]:
    """What the emulated algorithm sends for it, and what the modelled machines take, by whichever way they choose."""
    ranks = options.ranks
    rounds = rounds_of(options.algorithm, ranks, machines.per_node(ranks), size // _FLOAT, _FLOAT)
    sent = traffic(rounds, ranks, _FLOAT)
    seconds = Modelled(job, machines).all_reduce_s(size, ranks)
    return {"bytes": size, "rounds": sent.rounds, "most_sent_bytes": max(sent.sent), "modelled_s": seconds}
