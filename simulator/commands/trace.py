"""`python -m simulator trace MODEL --system TYPE --layout dp=8,tp=4 --out FILE.json|png`: one step, event by event."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from simulator.emulate.machines import Machines
from simulator.layout import Layout
from simulator.layout_words import layout
from simulator.models import named
from simulator.system import System
from simulator.timeline import timeline, to_chrome
from trainer.config.problem import ConfigError, Problem

KINDS = (".json", ".png")


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        kind = _kind(asked.out)
        wanted = layout(asked.layout)
        events = timeline(named(asked.model).model, wanted, _system(asked.system, wanted))
        if kind == ".png":
            from simulator.timeline_picture import draw  # noqa: PLC0415  # matplotlib, only now

            draw(asked.out, f"{asked.model} on {wanted.gpus} GPUs of {asked.system}: {asked.layout}", events)
        else:
            asked.out.write_text(json.dumps(to_chrome(events)), encoding="utf-8")
    except (ConfigError, OSError) as bad:
        for line in str(bad).splitlines():
            print(f"simulator: {line}", file=sys.stderr)
        return 2
    step = max(event.end for event in events)
    print(f"{len(events)} events of a step of {1000 * step:,.1f} ms: {asked.out}")
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator trace", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a preset of the trainer or a published model")
    parser.add_argument("--system", default="p5.48xlarge", help="instance type or stack (%(default)s)")
    parser.add_argument("--layout", default="", metavar="NAME=VALUE,...", help="fields of a layout: dp, tp, pp, ...")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json|png")
    return parser.parse_args(words)


def _kind(out: Path) -> str:
    if out.suffix not in KINDS:
        message = f"{out.name!r}; allowed: a name that ends with {' or '.join(KINDS)}"
        raise ConfigError([Problem("--out", message, "json is for ui.perfetto.dev, png to look at")])
    return out.suffix


def _system(word: str, wanted: Layout) -> System:
    machines = Machines.named(word)
    problems = machines.problems(wanted.gpus)
    if problems:
        raise ConfigError(problems)
    return machines.system(wanted.gpus)
