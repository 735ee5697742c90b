"""A row of a table of collectives (the columns of data/collectives.csv) as a question to the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import get_args

from simulator.collectives import Group, Op, collective_time_s
from simulator.collectives.group import PROCESS_PER_GPU, LaunchOverhead, single_process_launch
from simulator.hardware.gpus import link_gb_s, load_gpu, parse_gpu_name
from simulator.hardware.system import System
from simulator.rows.network import parse_network
from simulator.rows.tables import read_header
from simulator.rows.values import RowCells, RowError

DATA = Path(__file__).parents[1] / "data" / "collectives.csv"
ADDED = ("predicted_time_us", "inferred", "error")
GPUS_PER_NODE = 8
LARGEST = 2**50


@dataclass(frozen=True)
class CollectiveQuery:
    op: Op
    size: float
    group: Group
    system: System
    inferred: tuple[str, ...]
    launch: LaunchOverhead = PROCESS_PER_GPU

    @property
    def time_us(self) -> float:
        return self.launch.time_us(collective_time_s(self.op, self.size, self.group, self.system) * 1e6)


def list_columns() -> tuple[str, ...]:
    """That a table of collectives may have."""
    return (*read_header(DATA), *ADDED)


def predict_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The rows with what the model says of each; an error instead where a row is impossible."""
    return [{**row, **dict(zip(ADDED, _answer(row), strict=True))} for row in rows]


def _answer(row: Mapping[str, str]) -> tuple[str, str, str]:
    try:
        asked = parse_collective_row(row)
        found = asked.time_us
    except RowError as impossible:
        return "", "", str(impossible)
    except (ArithmeticError, ValueError, LookupError) as unforeseen:
        # A row must never end the others.
        return "", "", f"row: {type(unforeseen).__name__} {unforeseen}; allowed: machines that can be built"
    return f"{found:.6g}", "; ".join(asked.inferred), ""


def parse_collective_row(row: Mapping[str, str]) -> CollectiveQuery:
    """RowError where the row cannot be true, or leaves out what nobody can infer."""
    values = RowCells(row)
    values.required("op")
    op = _op(values)
    size = values.whole("bytes", None, high=LARGEST)
    ranks = values.whole("gpus", None, low=2)
    per_node = _per_node(values, ranks)
    system = _system(values, ranks, per_node)
    # Benchmarks of one node are mostly run as one process.
    alone = ranks <= per_node and "process per gpu" not in values.text("note").lower()
    launch = single_process_launch(ranks, system.gpu.generation) if alone else PROCESS_PER_GPU
    return CollectiveQuery(op, size, Group(ranks, min(ranks, per_node)), system, tuple(values.inferred), launch)


def _op(values: RowCells) -> Op:
    """As nccl-tests, torch or a paper write it: all_reduce, AllReduce, all-reduce, sendrecv."""
    word = values.text("op").lower().replace("-", "").replace("_", "").replace(" ", "")
    known: dict[str, Op] = {name.replace("_", ""): name for name in get_args(Op)}
    if word.removesuffix("perf").removesuffix("recv") in known:
        return known[word.removesuffix("perf").removesuffix("recv")]
    raise RowError(f"op: {values.text('op')!r}; allowed: {', '.join(get_args(Op))}; choose one")


def _per_node(values: RowCells, ranks: int) -> int:
    nodes = values.whole("nodes", 0, quiet=True)
    per_node = values.whole("gpus_per_node", ceil(ranks / nodes) if nodes else GPUS_PER_NODE)
    used = min(ranks, per_node)
    if ranks % used:
        raise RowError(f"gpus: {ranks}; allowed: multiples of gpus_per_node = {per_node}, or fewer; change one of them")
    if nodes and nodes != ranks // used:
        raise RowError(f"nodes: {nodes}; allowed: gpus / gpus_per_node = {ranks // used}; change one of them")
    return per_node


def _system(values: RowCells, ranks: int, per_node: int) -> System:
    name = parse_gpu_name(values.required("gpu_type"))
    try:
        found = load_gpu(name)
    except KeyError as unknown:
        raise RowError(f"{unknown.args[0]}; write one of them") from None
    words = values.text("interconnect")
    net = parse_network(words, per_node)
    inter = values.number("inter_gb_s", net.gb_s, quiet=True)
    if ranks > per_node and not inter:
        raise RowError("inter_gb_s: blank; allowed: GB/s of a node's network cards; fill it in")
    if ranks > per_node and not values.text("inter_gb_s"):
        values.infer("inter_gb_s", inter)
    if ranks > per_node and not words:
        values.infer("interconnect", net.kind)
    return System(
        name=values.text("system") or name,
        gpu=found,
        gpus_per_node=per_node,
        nodes=ceil(ranks / per_node),
        intra_gb_s=values.number("intra_gb_s", link_gb_s(name)),
        inter_gb_s=inter,
        nvlink_domain=values.whole("nvlink_domain", per_node, quiet=True),
        network=net.kind,
        cards=net.cards,
    )
