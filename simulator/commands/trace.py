"""The `trace` command: write the predicted events of one training step."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulator.commands import layout_option
from simulator.commands.console import print_problems
from simulator.layout import Layout
from simulator.machines import profile
from simulator.machines.profile_fit import RatedSystem
from simulator.machines.sources import InstanceMachines, find_machines
from simulator.memory.peak import predict_memory
from simulator.models import find_model
from simulator.step import timeline_output
from simulator.step.timeline import build_timeline
from simulator.terminal import program_name
from trainer.config.errors import ConfigError, ConfigProblem

DEFAULT_SYSTEM = "p5.48xlarge"
MAX_MICRO_BATCHES = 1024
"""Longer timelines are too long to read and take over a minute to write."""
GPUS_OPTION = f"{layout_option.WHERE} dp x tp x pp x cp"
ABOUT = """Write the predicted events of one step, for a trace viewer (.json) or as a picture (.png).

  %(prog)s llama-8b --layout dp=8,tp=4 --out step.json"""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(arguments)
    try:
        _trace(options)
    except ConfigError as error:
        return print_problems(error)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program_name("trace"), description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="preset of the trainer, or a published model")
    parser.add_argument("--system", help=f"instance type or stack (default: {DEFAULT_SYSTEM})")
    profile = "use rates that `calibrate` measured; with --system, only those of the GPU"
    parser.add_argument("--profile", type=Path, metavar="FILE", help=profile)
    parser.add_argument(
        "--layout",
        default="",
        metavar="NAME=VALUE,...",
        help="dp, tp, pp, cp, ep, zero, micro_batch, global_batch (default: micro_batch x dp), recompute, ...",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json|png", help="file to write")
    return parser.parse_args(arguments)


def _trace(options: argparse.Namespace) -> None:
    timeline_output.check_output("--out", options.out)
    measured = profile.read(options.profile) if options.profile else None
    dtype = measured.worlds[0].get("precision", "bf16") if measured else "bf16"
    layout = layout_option.parse_layout(options.layout, dtype)
    model = find_model(options.model).model
    layout_option.check(model, layout)
    _check_length(layout)
    machines = _find_machines(options, measured, layout)
    events = build_timeline(model, layout, machines.system, machines.rates)
    gpus = f"ranks of {options.profile.name}" if measured else f"GPUs of {options.system or DEFAULT_SYSTEM}"
    title = f"{options.model} on {layout.gpus} {gpus}: {options.layout}"
    reason = predict_memory(model, layout, machines.system).reason
    if reason:
        print(f"DOES NOT FIT: {reason}")
        title += " (DOES NOT FIT)"
    if note := layout_option.describe_uneven_stages(model, layout):
        print(note)
    print(timeline_output.write_timeline(options.out, title, events))


def _check_length(layout: Layout) -> None:
    if layout.micro_batches > MAX_MICRO_BATCHES:
        most = MAX_MICRO_BATCHES * layout.micro_batch * layout.dp
        message = f"{layout.global_batch}; allowed: up to {most}, {MAX_MICRO_BATCHES} micro-batches of each replica"
        fix = "use a smaller batch: all micro-batches of a step look alike"
        raise ConfigError([ConfigProblem(f"{layout_option.WHERE} global_batch", message, fix)])


def _find_machines(options: argparse.Namespace, measured: profile.Profile | None, layout: Layout) -> RatedSystem:
    machines = find_machines(options.system, measured, DEFAULT_SYSTEM)
    problems = []
    if isinstance(machines, InstanceMachines):
        problems = machines.limit_problems(layout.gpus, GPUS_OPTION, "make one of them smaller")
    if problems := problems or machines.problems(layout.gpus, GPUS_OPTION):
        raise ConfigError(problems)
    return RatedSystem(machines.system(layout.gpus), machines.rates(layout.gpus))
