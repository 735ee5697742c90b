"""`python -m simulator trace MODEL --system TYPE --layout dp=8,tp=4 --out FILE.json|png`: one step, event by event."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulator.commands import layout_option
from simulator.commands.refused import refused
from simulator.layout import Layout
from simulator.machines import profile
from simulator.machines.profile_fit import RatedSystem
from simulator.machines.sources import InstanceMachines, find_machines
from simulator.memory.peak import predict_memory
from simulator.models import find_model
from simulator.step import timeline_output
from simulator.step.timeline import build_timeline
from trainer.config.errors import ConfigError, ConfigProblem

USUAL = "p5.48xlarge"
MOST_MICRO_BATCHES = 1024
"""More events than anybody looks at, and a minute of waiting for them."""
GPUS = f"{layout_option.WHERE} dp x tp x pp x cp"


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        _trace(asked)
    except ConfigError as bad:
        return refused(bad)
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator trace", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a preset of the trainer or a published model")
    parser.add_argument("--system", help=f"instance type or stack ({USUAL})")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="as calibrate measured them, or the system's GPU")
    parser.add_argument(
        "--layout",
        default="",
        metavar="NAME=VALUE,...",
        help="dp, tp, pp, cp, ep, zero, micro_batch, global_batch (micro_batch x dp by default), recompute, ...",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json|png")
    return parser.parse_args(words)


def _trace(asked: argparse.Namespace) -> None:
    timeline_output.check_output("--out", asked.out)
    known = profile.read(asked.profile) if asked.profile else None
    wanted = layout_option.layout(asked.layout, known.worlds[0].get("precision", "bf16") if known else "bf16")
    model = find_model(asked.model).model
    layout_option.check(model, wanted)
    _drawable(wanted)
    machines = _on(asked, known, wanted)
    events = build_timeline(model, wanted, machines.system, machines.rates)
    on = f"ranks of {asked.profile.name}" if known else f"GPUs of {asked.system or USUAL}"
    title = f"{asked.model} on {wanted.gpus} {on}: {asked.layout}"
    reason = predict_memory(model, wanted, machines.system).reason
    if reason:
        print(f"DOES NOT FIT: {reason}")
        title += " (DOES NOT FIT)"
    if said := layout_option.uneven(model, wanted):
        print(said)
    print(timeline_output.write_timeline(asked.out, title, events))


def _drawable(wanted: Layout) -> None:
    if wanted.micro_batches > MOST_MICRO_BATCHES:
        most = MOST_MICRO_BATCHES * wanted.micro_batch * wanted.dp
        message = f"{wanted.global_batch}; allowed: up to {most}, {MOST_MICRO_BATCHES} micro-batches of each replica"
        fix = "ask for fewer: a step repeats itself"
        raise ConfigError([ConfigProblem(f"{layout_option.WHERE} global_batch", message, fix)])


def _on(asked: argparse.Namespace, known: profile.Profile | None, wanted: Layout) -> RatedSystem:
    machines = find_machines(asked.system, known, USUAL)
    problems = []
    if isinstance(machines, InstanceMachines):
        problems = machines.limit_problems(wanted.gpus, GPUS, "make one of them smaller")
    if problems := problems or machines.problems(wanted.gpus, GPUS):
        raise ConfigError(problems)
    return RatedSystem(machines.system(wanted.gpus), machines.rates(wanted.gpus))
