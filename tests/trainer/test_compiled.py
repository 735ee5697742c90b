"""Compiled models train like eager ones, and nothing is compiled again after the second step or evaluation.

The backend runs the operations of the graphs one by one: inductor needs a compiler, which the node image does not have.
tests/gpu/test_compiled_families.py has the same cases with inductor.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import FAMILIES, settings
from trainer.config.load import from_dict
from trainer.data.registry import open_sources
from trainer.evaluation.evaluator import Evaluator

STEPS = 6
EVALUATED = (2, 4, 6)
DAILY = [("llama", "fsdp", "blocks")]
CASES = [
    *DAILY,
    ("gpt2", "single", "whole"),
    ("resnet", "single", "blocks"),
    ("llama", "single", "blocks"),
    ("llama", "single", "whole"),
    ("gpt2", "single", "blocks"),
    ("resnet", "single", "whole"),
]


@pytest.mark.parametrize(
    ("family", "strategy", "mode"),
    [pytest.param(*case, marks=() if case in DAILY else pytest.mark.nightly) for case in CASES],
)
def test_a_compiled_model_trains_like_an_eager_one_without_compiling_again(
    family: str, strategy: str, mode: str
) -> None:
    compare_with_eager(family, strategy, mode, "aot_eager", tolerance=1e-6)


def compare_with_eager(family: str, strategy: str, mode: str, backend: str, tolerance: float) -> None:
    eager = train(family, strategy, "compile.mode=none")
    compiled = train(family, strategy, f"compile.mode={mode}", f"compile.backend={backend}")
    for name in ("losses", "evaluations"):
        assert compiled[name] == pytest.approx(eager[name], abs=tolerance)
    assert eager["graphs"] == [0] * STEPS
    graphs = compiled["graphs"]
    # The second step is evaluated, which compiles the forward pass once more, without gradients.
    assert 0 < graphs[0] <= graphs[1]
    assert graphs[1:] == [graphs[1]] * (STEPS - 1)
    assert compiled["breaks"] == {}


def train(family: str, strategy: str, *more: str) -> dict[str, Any]:
    row = FAMILIES[family]
    data = ("data.samples=100", "evaluation.share=0.1", "model.seq_len=16")[: 3 if row.axes else 2]
    config = config_of(row.preset, [*row.settings, *settings(strategy), *data, *more])
    results = on_ranks("tests.trainer.test_compiled:train_and_count", ranks=1, config=config, micro=row.micro)
    result: dict[str, Any] = results[0]
    return result


def train_and_count(config: dict[str, Any], micro: int) -> dict[str, Any]:
    """Return the losses of steps and evaluations, the graphs compiled up to each step, and where graphs broke."""
    import torch
    from torch._dynamo.utils import counters

    # A pool of compiling processes takes longer to start than these models to compile.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.compiler.reset()
    counters.clear()
    parsed = from_dict(config)
    step = make_step(parsed)
    source = open_sources(parsed).evaluation
    assert source is not None
    evaluator = Evaluator(step.engine, source, parsed, micro)
    losses, evaluations, graphs = [], [], []
    for index in range(STEPS):
        losses.append(float(step.run(global_batch(parsed, index), micro).loss))
        result = evaluator.run() if index + 1 in EVALUATED else None
        evaluations += [result.loss] if result is not None else []
        graphs.append(counters["stats"]["unique_graphs"])
    return {
        "losses": losses,
        "evaluations": evaluations,
        "graphs": graphs,
        "breaks": dict(counters["graph_break"]),
    }
