"""The `auto` command: print the trainer's arguments with a chosen layout in place of `strategy: auto`.

`muster submit` runs this for training jobs. A choice that cannot be made here is left to the trainer, which then
chooses by the memory of the nodes.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from infra.targets.registry import target_of
from simulator.commands.console import print_problems
from simulator.machines import stacks
from simulator.machines.instances import system
from simulator.search.auto_layout import choose_layout, list_costly_settings, skip_reason
from simulator.search.question import parse_node_count
from simulator.search.summary_text import describe_bottleneck, format_layout
from simulator.terminal import program_name
from trainer.config.errors import ConfigError
from trainer.config.load import load


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog=program_name("auto"),
        description="Print the trainer's arguments with a chosen layout in place of strategy auto.",
    )
    parser.add_argument("config", nargs="+", help="preset or YAML file, then settings, as for `python -m trainer`")
    parser.add_argument("--stack", "-s", required=True, help="name in stacks/, or a stack file")
    parser.add_argument("--group", help="node group of the stack (default: the default partition)")
    parser.add_argument("--nodes", required=True, help="number of nodes of the job")
    options = parser.parse_intermixed_args(arguments)
    try:
        overrides = _choose(options)
    except ConfigError as error:
        # `muster submit` passes each line on.
        return print_problems(error, one_line_each=True)
    print(shlex.join([*options.config, *overrides]))
    return 0


def _choose(options: argparse.Namespace) -> list[str]:
    """Return overrides for the trainer, and explain the choice on stderr."""
    nodes = parse_node_count(options.nodes)
    config = load(options.config[0], options.config[1:])
    if config.parallel.strategy != "auto":
        fix = "add parallel.strategy=auto to have it chosen"
        print(f"nothing to choose: parallel.strategy is {config.parallel.strategy}; {fix}", file=sys.stderr)
        return []
    if reason := skip_reason(config):
        print(f"left to the trainer: {reason}", file=sys.stderr)
        return []
    spec = stacks.spec_of(stacks.find(options.stack))
    group = spec.groups[stacks.group_of(spec, options.group or spec.slurm.default_group or next(iter(spec.groups)))]
    machines = system(group.instance_type or "", nodes, group.fabric, target_of(spec).region(spec))
    overrides, chosen = choose_layout(config, machines)
    costly = list_costly_settings(config, machines, chosen)
    step, where = chosen.prediction, f"{format_layout(chosen.layout)} on {nodes} x {machines.name}"
    print(
        f"{where}: {step.step_s:.2f} s a step ({step.low_s:.2f} to {step.high_s:.2f}), "
        f"{step.memory.total / 2**30:.0f} GiB of {machines.gpu.memory_gb:.0f}, {describe_bottleneck(step)}"
        + "".join(f"; {setting} would take {other.prediction.step_s:.2f} s" for setting, other in costly.items()),
        file=sys.stderr,
    )
    return overrides
