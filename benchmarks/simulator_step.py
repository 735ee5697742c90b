"""Measure the accuracy of step times for sources left out of the fit, and their speed on one core.

python -m benchmarks.simulator_step
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import product
from statistics import median

from benchmarks.figures import Figure, report
from simulator.fit.run_errors import errors_by_source, predict_without_own_source, rank_layouts, run_error_table
from simulator.layout import Layout
from simulator.machines.instances import system
from simulator.memory.peak import predict_memory
from simulator.models import find_model
from simulator.rows.measured import load_measured_runs
from simulator.step.prediction import predict

PREDICTIONS = 10_000
CALCULON_PER_S = 267
"""Calculon (github.com/calculon-ai/calculon at caa4b11), run on one core."""


def main() -> int:
    """Print the figures and return 1 if one exceeds its bound."""
    began = time.process_time()
    rows = predict_without_own_source([run for run in load_measured_runs() if run.step_s > 0])
    took = time.process_time() - began
    errors, orders = errors_by_source(rows), rank_layouts(rows)
    whole, core_s = errors["all"], _time_predictions()
    print(run_error_table(errors), "\n")
    figures = [
        Figure("step time of sources left out, median error", 100 * whole.median, "%", "Calculon 3.5 to 30 %", 8),
        Figure("the same, 90th percentile", 100 * whole.p90, "%", "Calculon 6 to 70 %", 22),
        Figure("outside their 80 % interval", 100 * (1 - whole.covered), "%", "20 %", 25),
        Figure("chosen layout over the best, median", 100 * median(order.regret for order in orders), "%", "0 %", 3),
        Figure("leaving every source out once, core time", took, "s", "", 120),
        Figure("core time of 10,000 predictions", core_s, "s", f"Calculon {PREDICTIONS / CALCULON_PER_S:.0f} s", 1),
    ]  # fmt: skip
    print(report(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def _time_predictions() -> float:
    """Return the core seconds of 10,000 predictions."""
    model, machines = find_model("llama-70b").model, system("p5en.48xlarge", 16)
    sizes = product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4), ("none", "full"), (0, 1, 3))
    layouts = [
        Layout(dp=128 // (tp * pp), tp=tp, pp=pp, micro_batch=micro, global_batch=2048, recompute=recompute, zero=zero)  # type: ignore[arg-type]
        for tp, pp, micro, recompute, zero in sizes
    ]
    layouts = [layout for layout in layouts if predict_memory(model, layout, machines).fits]
    again = [replace(layout, global_batch=1024 * (2 + number)) for number in range(20) for layout in layouts]
    began = time.process_time()
    for layout in again:
        predict(model, layout, machines)
    return (time.process_time() - began) / len(again) * PREDICTIONS


if __name__ == "__main__":
    sys.exit(main())
