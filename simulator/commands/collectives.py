"""`python -m simulator collectives --instance p5.48xlarge --nodes 4`: what nccl-tests would show, and NCCL's way."""

from __future__ import annotations

import argparse
from typing import get_args

from simulator.collectives import Group, Op, choose_algorithm
from simulator.commands.refused import refused
from simulator.hardware.system import System
from simulator.machines.instances import system
from simulator.machines.stack_names import MAX_NODES
from simulator.search.question import nodes
from trainer.config.errors import ConfigError, ConfigProblem

SIZES = tuple(2**power for power in range(20, 35, 2))
ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often (n-1)/n of the array is sent, as nccl-tests count bus bandwidth; the others send all of it once."""


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        machines = system(asked.instance, _nodes(asked.nodes), asked.fabric)
        group = _group(asked, machines)
    except ConfigError as bad:
        return refused(bad)
    beside = f", {group.sharing} such groups at once" if group.sharing > 1 else ""
    print(f"{asked.op} of {group.ranks} ranks on {machines.nodes} x {machines.name}{beside}")
    print(f"{'bytes':>12} {'us':>11} {'bus GB/s':>9}  way")
    for size in SIZES:
        way = choose_algorithm(asked.op, size, group, machines)
        time_us = way.time_us(size)
        sent = size * (ROUNDS[asked.op] * (group.ranks - 1) / group.ranks if asked.op in ROUNDS else 1)
        print(f"{size:12} {time_us:11.1f} {sent / time_us / 1e3:9.2f}  {way.algorithm} {way.protocol}")
    return 0


def _nodes(word: str) -> int:
    """One number: what others take as a range or a list has no one answer here."""
    try:
        counts = nodes(word)
    except ConfigError:
        message = f"{word} is outside of 1 to {MAX_NODES}" if word.isdigit() else f"{word!r}"
        allowed = f"allowed: one whole number from 1 to {MAX_NODES}"
        raise ConfigError([ConfigProblem("--nodes", f"{message}; {allowed}", "write for example 4")]) from None
    if len(counts) > 1:
        message = f"{', '.join(map(str, counts))}; allowed: one number"
        raise ConfigError([ConfigProblem("--nodes", message, "ask for one after the other")])
    return counts[0]


def _group(asked: argparse.Namespace, machines: System) -> Group:
    per_node = machines.gpus_per_node if asked.per_node is None else asked.per_node
    if not 1 <= per_node <= machines.gpus_per_node:
        message = f"{per_node}; allowed: 1 to {machines.gpus_per_node}, the GPUs of a {machines.name}"
        raise ConfigError([ConfigProblem("--per-node", message, "choose one of them")])
    _check_sharing(asked.sharing, per_node, machines)
    ranks = machines.nodes * per_node
    if ranks == 1:
        message = "1 with one rank in it; allowed: two ranks or more"
        raise ConfigError([ConfigProblem("--nodes", message, "ask for more --nodes or --per-node")])
    if asked.op == "send":
        return Group(2, 1 if machines.nodes > 1 else 2, asked.sharing)
    return Group(ranks, per_node, asked.sharing)


def _check_sharing(sharing: int, per_node: int, machines: System) -> None:
    most = machines.gpus_per_node // per_node
    if 1 <= sharing <= most:
        return
    held = f"a group with {per_node} of the {machines.gpus_per_node} GPUs of a {machines.name}"
    if most > 1:
        message = f"{sharing}; allowed: 1 to {most}: {held} leaves room for so many"
        raise ConfigError([ConfigProblem("--sharing", message, "choose one of them")])
    fix = "leave it out, or ask for groups with fewer GPUs of a node (--per-node)"
    raise ConfigError([ConfigProblem("--sharing", f"{sharing}; allowed: 1: {held} leaves no room for another", fix)])


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator collectives", description=__doc__)
    parser.add_argument("--instance", required=True, help="instance type of the catalog")
    parser.add_argument("--nodes", required=True, help=f"one number, 1 to {MAX_NODES}")
    parser.add_argument("--op", choices=get_args(Op), default="all_reduce")
    parser.add_argument("--fabric", choices=("efa", "tcp"), default="efa")
    parser.add_argument("--per-node", type=int, help="ranks of the group in one node; by default all its GPUs")
    parser.add_argument("--sharing", type=int, default=1, help="groups like it that use the node's cards at once")
    return parser.parse_args(words)
