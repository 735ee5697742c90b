"""`python -m simulator trace MODEL --system TYPE --layout dp=8,tp=4 --out FILE.json|png`: one step, event by event."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator import timeline_file
from simulator.emulate.machines import Machines
from simulator.layout import Layout
from simulator.layout_words import layout
from simulator.models import named
from simulator.system import System
from simulator.timeline import timeline
from trainer.config.problem import ConfigError


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        timeline_file.check("--out", asked.out)
        wanted = layout(asked.layout)
        events = timeline(named(asked.model).model, wanted, _system(asked.system, wanted))
        title = f"{asked.model} on {wanted.gpus} GPUs of {asked.system}: {asked.layout}"
        print(timeline_file.write(asked.out, title, events))
    except (ConfigError, OSError) as bad:
        for line in str(bad).splitlines():
            print(f"simulator: {line}", file=sys.stderr)
        return 2
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator trace", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a preset of the trainer or a published model")
    parser.add_argument("--system", default="p5.48xlarge", help="instance type or stack (%(default)s)")
    parser.add_argument("--layout", default="", metavar="NAME=VALUE,...", help="fields of a layout: dp, tp, pp, ...")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json|png")
    return parser.parse_args(words)


def _system(word: str, wanted: Layout) -> System:
    machines = Machines.named(word)
    problems = machines.problems(wanted.gpus)
    if problems:
        raise ConfigError(problems)
    return machines.system(wanted.gpus)
