"""`python -m simulator auto CONFIG key=value ... --stack S --nodes N`: words for the trainer, strategy auto settled.

`muster submit` asks it for jobs that train. What cannot be settled here is left to the trainer, which then chooses by
memory on the nodes themselves.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from infra.targets.registry import target_of
from simulator.commands.refused import refused
from simulator.machines import stacks
from simulator.machines.instances import system
from simulator.search.question import node_count
from simulator.search.settled import dear, settled, why_not
from simulator.search.words import bottleneck, layout_words
from trainer.config.errors import ConfigError
from trainer.config.load import load


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator auto", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="+", help="preset or YAML file, then overrides as the trainer takes them")
    parser.add_argument("--stack", required=True, help="name in stacks/, or a stack file")
    parser.add_argument("--group", help="node group of the stack; by default the one that jobs go to")
    parser.add_argument("--nodes", required=True, help="that the job will have")
    asked = parser.parse_intermixed_args(words)
    try:
        chosen = _chosen(asked)
    except ConfigError as bad:
        # `muster submit` passes the line on.
        return refused(bad, whole=True)
    print(shlex.join([*asked.config, *chosen]))
    return 0


def _chosen(asked: argparse.Namespace) -> list[str]:
    count = node_count(asked.nodes)
    config = load(asked.config[0], asked.config[1:])
    if config.parallel.strategy != "auto":
        fix = "add parallel.strategy=auto to have it chosen"
        print(f"nothing to choose: parallel.strategy is {config.parallel.strategy}; {fix}", file=sys.stderr)
        return []
    if why := why_not(config):
        print(f"left to the trainer: {why}", file=sys.stderr)
        return []
    spec = stacks.spec_of(stacks.find(asked.stack))
    group = spec.groups[stacks.group_of(spec, asked.group or spec.slurm.default_group or next(iter(spec.groups)))]
    machines = system(group.instance_type or "", count, group.fabric, target_of(spec).region(spec))
    chosen, found = settled(config, machines)
    better = dear(config, machines, found)
    step, where = found.prediction, f"{layout_words(found.layout)} on {count} x {machines.name}"
    print(
        f"{where}: {step.step_s:.2f} s a step ({step.low_s:.2f} to {step.high_s:.2f}), "
        f"{step.memory.total / 2**30:.0f} GiB of {machines.gpu.memory_gb:.0f}, {bottleneck(step)}"
        + "".join(f"; {word} would take {other.prediction.step_s:.2f} s" for word, other in better.items()),
        file=sys.stderr,
    )
    return chosen
