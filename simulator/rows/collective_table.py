"""Parse and predict tables of collectives with the columns of data/collectives.csv."""

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
from simulator.rows.cells import RowCells, RowError
from simulator.rows.network import parse_network
from simulator.rows.tables import read_header

DATA = Path(__file__).parents[1] / "data" / "collectives.csv"
ADDED_COLUMNS = ("predicted_time_us", "inferred", "error")
DEFAULT_GPUS_PER_NODE = 8
MAX_BYTES = 2**50


@dataclass(frozen=True)
class CollectiveQuery:
    """A collective to predict, parsed from a row."""

    op: Op
    size: float
    """Bytes of the full array."""
    group: Group
    system: System
    inferred: tuple[str, ...]
    """property=value of what the row leaves out."""
    launch: LaunchOverhead = PROCESS_PER_GPU

    @property
    def time_us(self) -> float:
        return self.launch.time_us(collective_time_s(self.op, self.size, self.group, self.system) * 1e6)


def list_columns() -> tuple[str, ...]:
    """Return the columns that a table of collectives may have."""
    return (*read_header(DATA), *ADDED_COLUMNS)


def predict_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows with their predictions, or with an error if a row is invalid."""
    return [{**row, **dict(zip(ADDED_COLUMNS, _predict_row(row), strict=True))} for row in rows]


def _predict_row(row: Mapping[str, str]) -> tuple[str, str, str]:
    try:
        query = parse_collective_row(row)
        time_us = query.time_us
    except RowError as error:
        return "", "", str(error)
    except (ArithmeticError, ValueError, LookupError) as unexpected:
        # One bad row must not stop the others.
        return "", "", f"row: {type(unexpected).__name__} {unexpected}; allowed: machines that can be built"
    return f"{time_us:.6g}", "; ".join(query.inferred), ""


def parse_collective_row(row: Mapping[str, str]) -> CollectiveQuery:
    """Parse a row; raise RowError if it contradicts itself or lacks what cannot be inferred."""
    cells = RowCells(row)
    cells.required("op")
    op = _op(cells)
    size = cells.whole("bytes", None, high=MAX_BYTES)
    ranks = cells.whole("gpus", None, low=2)
    per_node = _per_node(cells, ranks)
    system = _system(cells, ranks, per_node)
    # Benchmarks of a single node usually run as one process.
    single_process = ranks <= per_node and "process per gpu" not in cells.text("note").lower()
    launch = single_process_launch(ranks, system.gpu.generation) if single_process else PROCESS_PER_GPU
    return CollectiveQuery(op, size, Group(ranks, min(ranks, per_node)), system, tuple(cells.inferred), launch)


def _op(cells: RowCells) -> Op:
    """Parse an operation as nccl-tests, torch or papers write it: all_reduce, AllReduce, all-reduce, sendrecv."""
    name = cells.text("op").lower().replace("-", "").replace("_", "").replace(" ", "")
    operations: dict[str, Op] = {op.replace("_", ""): op for op in get_args(Op)}
    if name.removesuffix("perf").removesuffix("recv") in operations:
        return operations[name.removesuffix("perf").removesuffix("recv")]
    raise RowError(f"op: {cells.text('op')!r}; allowed: {', '.join(get_args(Op))}; choose one")


def _per_node(cells: RowCells, ranks: int) -> int:
    nodes = cells.whole("nodes", 0, quiet=True)
    per_node = cells.whole("gpus_per_node", ceil(ranks / nodes) if nodes else DEFAULT_GPUS_PER_NODE)
    used = min(ranks, per_node)
    if ranks % used:
        raise RowError(f"gpus: {ranks}; allowed: multiples of gpus_per_node = {per_node}, or fewer; change one of them")
    if nodes and nodes != ranks // used:
        raise RowError(f"nodes: {nodes}; allowed: gpus / gpus_per_node = {ranks // used}; change one of them")
    return per_node


def _system(cells: RowCells, ranks: int, per_node: int) -> System:
    name = parse_gpu_name(cells.required("gpu_type"))
    try:
        gpu = load_gpu(name)
    except KeyError as error:
        raise RowError(f"{error.args[0]}; write one of them") from None
    interconnect = cells.text("interconnect")
    network = parse_network(interconnect, per_node)
    inter = cells.number("inter_gb_s", network.gb_s, quiet=True)
    if ranks > per_node and not inter:
        raise RowError("inter_gb_s: blank; allowed: GB/s of a node's network cards; fill it in")
    if ranks > per_node and not cells.text("inter_gb_s"):
        cells.infer("inter_gb_s", inter)
    if ranks > per_node and not interconnect:
        cells.infer("interconnect", network.kind)
    return System(
        name=cells.text("system") or name,
        gpu=gpu,
        gpus_per_node=per_node,
        nodes=ceil(ranks / per_node),
        intra_gb_s=cells.number("intra_gb_s", link_gb_s(name)),
        inter_gb_s=inter,
        nvlink_domain=cells.whole("nvlink_domain", per_node, quiet=True),
        network=network.kind,
        cards=network.cards,
    )
