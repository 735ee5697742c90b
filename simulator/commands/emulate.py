"""The `emulate` command: run a job of many GPUs in one process, with real numbers and a simulated clock."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.commands.console import print_problems
from simulator.emulate.all_reduce import ALGORITHMS, count_traffic, rounds_of
from simulator.emulate.clock import Clock, PredictedCosts
from simulator.emulate.limits import list_problems
from simulator.emulate.record import Line, draw_chart, format_table, write_json
from simulator.emulate.scaling import predict_scaling
from simulator.job import Job
from simulator.machines.profile import read
from simulator.machines.sources import MachineSource, find_machines
from simulator.terminal import program_name
from trainer.config.check import check_world
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import load, to_dict
from trainer.config.schema import Config

if TYPE_CHECKING:
    from simulator.emulate.run import Emulation

ABOUT = """Run a job for many GPUs in this process: the arithmetic is real, the clock is simulated.

This needs torch, which .venv does not have. In an environment with the trainer's packages:
  python3 -m venv .venv-torch && .venv-torch/bin/pip install '.[trainer,simulator]'
  .venv-torch/bin/python -m simulator emulate --ranks 256"""
_DEFAULT_SYSTEM = "p5.48xlarge"
_MAX_JITTER = 1.0
_DEFAULT_CONFIG, _DEFAULT_BATCH = "tiny-llama", 8
_FLOAT_BYTES = 4


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        machines, config = _check(options)
        _run(config, machines, options)
    except ConfigError as error:
        return print_problems(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program_name("emulate"), description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help=f"preset or YAML file of the trainer (default: {_DEFAULT_CONFIG})"
    )
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings, as for `python -m trainer`")
    parser.add_argument("--ranks", type=int, required=True, help="number of GPUs (one rank each), such as 4, 16 or 256")
    parser.add_argument("--system", help=f"instance type or stack that sets the clock (default: {_DEFAULT_SYSTEM})")
    profile = "use rates that `calibrate` measured; with --system, only those of the GPU"
    parser.add_argument("--profile", type=Path, metavar="FILE", help=profile)
    parser.add_argument("--jitter", type=float, help="standard deviation of the ranks' speed, such as 0.02")
    parser.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default="ring",
        help="order of additions in an all-reduce (default: ring, as gloo uses)",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for emulate.json and emulate.png (default: runs/emulate-NAME-RANKS)"
    )
    return parser


def _check(options: argparse.Namespace) -> tuple[MachineSource, Config]:
    """Return machines and settings; raise ConfigError for everything that can be checked without torch."""
    # Without a config: one sample for each rank, and few steps, so that the run takes seconds.
    small = [f"batch.size={max(_DEFAULT_BATCH, options.ranks)}", "steps=5"]
    config = load(options.config, options.settings) if options.config else load(_DEFAULT_CONFIG, small)
    problems = list_problems(config, options.ranks)
    jitter = options.jitter
    if jitter is not None and not (math.isfinite(jitter) and 0 <= jitter <= _MAX_JITTER):
        allowed = f"allowed: 0 to {_MAX_JITTER:g}"
        problems.append(ConfigProblem("--jitter", f"{jitter}; {allowed}", "use 0.02 for a busy cluster"))
    if problems:
        raise ConfigError(problems)
    machines = find_machines(options.system, read(options.profile) if options.profile else None, _DEFAULT_SYSTEM)
    # A single rank is needed too: efficiency is relative to it.
    problems = machines.problems(options.ranks) or machines.problems(1, "--profile: one rank")
    problems = problems or check_world(config, options.ranks, machines.per_node(options.ranks))
    if problems:
        raise ConfigError(problems)
    return machines, config


def _run(config: Config, machines: MachineSource, options: argparse.Namespace) -> None:
    ranks = options.ranks
    out = _create_folder(options.out or Path("runs") / f"emulate-{config.name}-{ranks}")
    emulation = _start(config, machines, options)
    job = Job(emulation.config, emulation.micro, config.batch.size // ranks)
    nodes = f"{machines.system(ranks).nodes} x {machines.name}"
    print(f"{ranks} ranks of {config.name}: the numbers are real, the clock is modelled on {nodes}")
    prediction = PredictedCosts(job, machines).prediction(ranks)
    for note in [*emulation.why, *([] if prediction.fits else [f"DOES NOT FIT a real GPU: {prediction.reason}"])]:
        print(f"  {note}")
    lines = []
    for line in _steps(emulation, job, machines, options):
        print(line.text(config.steps, job.unit), flush=True)
        lines.append(line)
    rows = predict_scaling(job, machines, emulation.group.sizes, ranks)
    print(f"\n{format_table(rows, job.unit)}")
    write_json(out / "emulate.json", _describe(emulation, job, machines, options), lines, rows)
    draw_chart(out / "emulate.png", f"{config.name}: {ranks} ranks on {machines.name}, modelled", lines, rows)
    print(f"\n{out / 'emulate.json'}\n{out / 'emulate.png'}")


def _create_folder(path: Path) -> Path:
    """Create the folder before the run, so that a path that cannot be written fails early."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{path} cannot be created ({error.strerror}); allowed: a writable folder"
        raise ConfigError([ConfigProblem("--out", message, "choose another folder with --out")]) from error
    return path


def _start(config: Config, machines: MachineSource, options: argparse.Namespace) -> Emulation:
    try:
        from simulator.emulate.run import Emulation  # noqa: PLC0415  # needs torch
    except ModuleNotFoundError as missing:
        fix = f"`{program_name('emulate')} --help` shows how to get it"
        raise ConfigError([ConfigProblem("", f"{missing.name} is not installed here", fix)]) from missing
    return Emulation(config, options.ranks, machines.per_node(options.ranks), options.algorithm, _show_rank)


def _show_rank(rank: int) -> None:
    """Show the current rank on a terminal; the line of the step replaces it."""
    if sys.stdout.isatty():
        print(f"rank {rank:>4} ", end="\r", flush=True)


def _steps(emulation: Emulation, job: Job, machines: MachineSource, options: argparse.Namespace) -> Iterator[Line]:
    costs = PredictedCosts(job, machines)
    clock = Clock(costs, options.ranks, options.jitter, seed=job.config.run.seed)
    alone_s = Clock(costs, 1).step([]).step_s
    for step in range(1, job.config.steps + 1):
        result = emulation.step()
        tick = clock.step(emulation.group.sizes)
        yield Line(
            step=step,
            **asdict(result),
            now_s=clock.now,
            units_per_s=job.units(options.ranks) / tick.step_s,
            efficiency=alone_s / tick.step_s,
            tick=tick,
        )


def _describe(emulation: Emulation, job: Job, machines: MachineSource, options: argparse.Namespace) -> dict[str, Any]:
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


def _all_reduce(size: int, job: Job, machines: MachineSource, options: argparse.Namespace) -> dict[str, Any]:
    """Describe the traffic of the emulated all-reduce, and its time on the modelled machines."""
    ranks = options.ranks
    rounds = rounds_of(options.algorithm, ranks, machines.per_node(ranks), size // _FLOAT_BYTES, _FLOAT_BYTES)
    sent = count_traffic(rounds, ranks, _FLOAT_BYTES)
    seconds = PredictedCosts(job, machines).all_reduce_s(size, ranks)
    return {"bytes": size, "rounds": sent.rounds, "most_sent_bytes": max(sent.sent), "modelled_s": seconds}
