"""The `collectives` command: predict the results of nccl-tests, and the algorithm that NCCL chooses."""

from __future__ import annotations

import argparse
from typing import get_args

from simulator.collectives import Group, Op, choose_algorithm
from simulator.commands.console import print_problems
from simulator.hardware.system import System
from simulator.machines.instances import system
from simulator.machines.stack_names import MAX_NODES
from simulator.search.question import parse_nodes
from simulator.terminal import program_name
from trainer.config.errors import ConfigError, ConfigProblem

SIZES = tuple(2**power for power in range(20, 35, 2))
SENDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often (n-1)/n of the array is sent, as nccl-tests count bus bandwidth; other operations send all of it once."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(arguments)
    try:
        machines = system(options.instance, _parse_nodes(options.nodes), options.fabric)
        group = _group(options, machines)
    except ConfigError as error:
        return print_problems(error)
    sharing = f", {group.sharing} groups at once" if group.sharing > 1 else ""
    print(f"{options.op} of {group.ranks} ranks on {machines.nodes} x {machines.name}{sharing}")
    print(f"{'bytes':>12} {'us':>11} {'bus GB/s':>9}  algorithm")
    for size in SIZES:
        algorithm = choose_algorithm(options.op, size, group, machines)
        time_us = algorithm.time_us(size)
        sent = size * (SENDS[options.op] * (group.ranks - 1) / group.ranks if options.op in SENDS else 1)
        bus_gb_s = sent / time_us / 1e3
        print(f"{size:12} {time_us:11.1f} {bus_gb_s:9.2f}  {algorithm.algorithm} {algorithm.protocol}")
    return 0


def _parse_nodes(text: str) -> int:
    """Return a single number of nodes; other commands also take ranges and lists."""
    try:
        counts = parse_nodes(text)
    except ConfigError:
        message = f"{text} is outside of 1 to {MAX_NODES}" if text.isdigit() else f"{text!r}"
        allowed = f"allowed: one whole number from 1 to {MAX_NODES}"
        raise ConfigError([ConfigProblem("--nodes", f"{message}; {allowed}", "write for example 4")]) from None
    if len(counts) > 1:
        message = f"{', '.join(map(str, counts))}; allowed: one number"
        raise ConfigError([ConfigProblem("--nodes", message, "run the command once for each")])
    return counts[0]


def _group(options: argparse.Namespace, machines: System) -> Group:
    per_node = machines.gpus_per_node if options.per_node is None else options.per_node
    if not 1 <= per_node <= machines.gpus_per_node:
        message = f"{per_node}; allowed: 1 to {machines.gpus_per_node}, the GPUs of a {machines.name}"
        raise ConfigError([ConfigProblem("--per-node", message, "choose one of them")])
    _check_sharing(options.sharing, per_node, machines)
    ranks = machines.nodes * per_node
    if ranks == 1:
        message = "1 with a single rank; allowed: two ranks or more"
        raise ConfigError([ConfigProblem("--nodes", message, "use more --nodes or --per-node")])
    if options.op == "send":
        return Group(2, 1 if machines.nodes > 1 else 2, options.sharing)
    return Group(ranks, per_node, options.sharing)


def _check_sharing(sharing: int, per_node: int, machines: System) -> None:
    most = machines.gpus_per_node // per_node
    if 1 <= sharing <= most:
        return
    group = f"a group with {per_node} of the {machines.gpus_per_node} GPUs of a {machines.name}"
    if most > 1:
        message = f"{sharing}; allowed: 1 to {most}: {group} leaves space for that many"
        raise ConfigError([ConfigProblem("--sharing", message, "choose one of them")])
    fix = "leave it out, or use groups with fewer GPUs of a node (--per-node)"
    raise ConfigError([ConfigProblem("--sharing", f"{sharing}; allowed: 1: {group} leaves no space for another", fix)])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program_name("collectives"),
        description="Predict the time and bus bandwidth that nccl-tests measures, and the algorithm that NCCL chooses.",
    )
    parser.add_argument("--instance", required=True, help="instance type of the catalog")
    parser.add_argument("--nodes", required=True, help=f"number of nodes, 1 to {MAX_NODES}")
    parser.add_argument("--op", choices=get_args(Op), default="all_reduce", help="collective (default: %(default)s)")
    parser.add_argument(
        "--fabric", choices=("efa", "tcp"), default="efa", help="network between nodes (default: %(default)s)"
    )
    parser.add_argument("--per-node", type=int, help="ranks per node (default: one per GPU)")
    parser.add_argument(
        "--sharing",
        type=int,
        default=1,
        help="number of groups that use the network cards of a node at the same time (default: %(default)s)",
    )
    return parser.parse_args(arguments)
