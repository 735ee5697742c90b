"""How far the model is from measured runs: errors by source, intervals, and the order of layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, log, nan
from statistics import median

from simulator.fit.error_tables import Table, aligned
from simulator.hardware.rates import Rates
from simulator.memory.peak import GIB
from simulator.rows.measured import Measured
from simulator.rows.run_table import prediction

LEAST_LAYOUTS = 4
"""Fewer have no order to speak of."""
SAME = 0.02
"""Two measured rates nearer than this are no order: a second run may swap them."""


@dataclass(frozen=True)
class Compared:
    """One measured run beside its prediction."""

    run: Measured
    step_s: float
    low_s: float
    high_s: float
    memory_gib: float

    @property
    def error(self) -> float:
        return self.step_s / self.run.step_s - 1

    @property
    def covered(self) -> bool:
        return self.low_s <= self.run.step_s <= self.high_s


@dataclass(frozen=True)
class Errors:
    rows: int
    median: float
    p90: float
    bias: float
    """Median of log(predicted / measured): above 0 the model is slower than what was measured."""
    covered: float
    """Share of the rows inside their interval."""
    memory_rows: int
    memory_median: float


@dataclass(frozen=True)
class Ranking:
    """The layouts of one model on so many GPUs of one system."""

    name: str
    layouts: int
    tau: float
    regret: float
    """What the layout that is predicted to be fastest takes over the fastest measured one, less 1."""


def compared(runs: Iterable[Measured], rates: Rates | None = None) -> list[Compared]:
    found = []
    for one in runs:
        said, low, high = prediction(one.run, rates)
        found.append(Compared(one, said.step_s, low, high, said.memory.printed / GIB))
    return found


def errors_by_source(rows: Sequence[Compared]) -> dict[str, Errors]:
    """Of each source, and of all of them under `all`."""
    by_source = _grouped(rows, lambda one: one.run.source)
    return {name: errors(own) for name, own in [*sorted(by_source.items()), ("all", list(rows))]}


def errors(rows: Sequence[Compared]) -> Errors:
    timed = [one for one in rows if one.run.step_s > 0]
    sizes = sorted(abs(one.error) for one in timed)
    weighed = [abs(one.memory_gib / one.run.memory_gib - 1) for one in rows if one.run.memory_gib > 0]
    return Errors(
        rows=len(timed),
        median=median(sizes) if sizes else nan,
        p90=sizes[ceil(0.9 * len(sizes)) - 1] if sizes else nan,
        bias=median(log(one.step_s / one.run.step_s) for one in timed) if timed else nan,
        covered=sum(one.covered for one in timed) / len(timed) if timed else nan,
        memory_rows=len(weighed),
        memory_median=median(weighed) if weighed else nan,
    )


def rankings(rows: Sequence[Compared]) -> list[Ranking]:
    """Of every group with layouts enough; runs of one layout count once, by their median."""
    groups = _grouped([one for one in rows if one.run.step_s > 0], _question)
    found = []
    for name, own in sorted(groups.items()):
        layouts = _grouped(own, lambda one: str(one.run.run.layout))
        pairs = [(median(_cost(one, one.step_s) for one in same), median(_cost(one, one.run.step_s) for one in same))
                 for same in layouts.values()]  # fmt: skip
        if len(pairs) >= LEAST_LAYOUTS:
            found.append(_ranking(name, pairs))
    return found


def table(found: Mapping[str, Errors], written: Table = aligned) -> str:
    heads = ("source", "rows", "median %", "p90 %", "bias %", "in interval %", "memory rows", "memory median %")
    return written(heads, [_cells(name, errors) for name, errors in found.items()])


def ranking_lines(found: Sequence[Ranking], written: Table = aligned) -> str:
    if not found:
        return "no model with so many layouts on the same GPUs that their order could be told"
    rows = [(one.name, str(one.layouts), f"{one.tau:.2f}", f"{100 * one.regret:.1f}") for one in found]
    middle, worst = median(one.tau for one in found), max(one.regret for one in found)
    regret = median(one.regret for one in found)
    whole = f"\n\ntau: median {middle:.2f}; regret: median {100 * regret:.1f} %, largest {100 * worst:.1f} %"
    return written(("model, system, GPUs, precision", "layouts", "tau", "regret %"), rows) + whole


def _cells(name: str, e: Errors) -> tuple[str, ...]:
    shares = (f"{100 * e.median:.1f}", f"{100 * e.p90:.1f}", f"{100 * e.bias:+.1f}", f"{100 * e.covered:.0f}")
    figures = (str(e.rows), *shares, str(e.memory_rows), f"{100 * e.memory_median:.1f}")
    return name, *("-" if "nan" in figure else figure for figure in figures)


def _ranking(name: str, pairs: Sequence[tuple[float, float]]) -> Ranking:
    signs = [
        (1 if (one[0] - other[0]) * (one[1] - other[1]) > 0 else -1)
        for one, other in combinations(pairs, 2)
        if abs(log(one[1] / other[1])) > SAME
    ]
    chosen = min(pairs)[1]
    best = min(measured for _, measured in pairs)
    return Ranking(name, len(pairs), sum(signs) / len(signs) if signs else 1.0, chosen / best - 1)


def _question(one: Compared) -> str:
    model, layout = one.run.run.model, one.run.run.layout
    sizes = f"{model.layers}x{model.hidden}, seq {model.seq}"
    return f"{one.run.row.get('model') or ''} {sizes}, {one.run.run.system.name}, {layout.gpus} {layout.dtype}"


def _cost(one: Compared, step_s: float) -> float:
    """Seconds of a sample: layouts differ in their batch too."""
    return step_s / one.run.run.layout.global_batch


def _grouped(rows: Sequence[Compared], key: Callable[[Compared], str]) -> dict[str, list[Compared]]:
    found: dict[str, list[Compared]] = defaultdict(list)
    for one in rows:
        found[key(one)].append(one)
    return found
