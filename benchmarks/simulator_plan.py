"""Time the planner: layouts per second on one core, and a whole plan for up to 1,024 GPUs.

Times are CPU times of its one core, which other load hardly affects.

python -m benchmarks.simulator_plan [--model llama-70b]
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.figures import Figure, report
from simulator.machines import stacks
from simulator.models import find_model
from simulator.search import question
from simulator.search.plan import plan
from simulator.search.question import Question

STACK = "aws-p5en-lustre"
LAYOUTS_PER_S_AT_LEAST = 10_000
PLAN_AT_MOST_S = 10.0
CALCULON_PER_S = 267
"""Calculon (github.com/calculon-ai/calculon at caa4b11), run on one core."""


def main() -> int:
    """Time a plan, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-70b")
    model = find_model(parser.parse_args().model)
    spec = stacks.spec_of(stacks.find(STACK))
    training_question = Question(
        named=model,
        tokens=1e12,
        spec=spec,
        group=stacks.group_of(spec, None),
        instances=("p5en.48xlarge",),
        nodes=question.parse_nodes("1..128"),
        purchases=("on-demand",),
        batch=question.choose_batch(model),
    )
    began, worked = time.perf_counter(), time.process_time()
    answer = plan(training_question)
    took, core_s = time.perf_counter() - began, time.process_time() - worked
    considered, timed = answer.counts.considered, answer.counts.timed
    rate, layouts = f"{considered / core_s:,.0f}/s", f"{considered:,} layouts, {took:.1f} s by the clock"
    print(report([
        Figure(f"{model.name}: a plan for 1 to 128 nodes of 8 GPUs", core_s, "s", layouts, PLAN_AT_MOST_S),
        Figure("core time for 10,000 layouts", core_s / considered * LAYOUTS_PER_S_AT_LEAST, "s", rate, 1),
        Figure("layouts timed, not ruled out before", timed / core_s, "/s", f"Calculon {CALCULON_PER_S}/s"),
    ]))  # fmt: skip
    return int(core_s > PLAN_AT_MOST_S or considered / core_s < LAYOUTS_PER_S_AT_LEAST)


if __name__ == "__main__":
    sys.exit(main())
