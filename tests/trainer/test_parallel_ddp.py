"""ddp uses its final buckets from the first step on and sends them during backward, also in a resumed run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings
from trainer.config.load import from_dict
from trainer.parallel.gradients import to_local
from trainer.step import Step

# About 2.2 MB of parameters, of which embedding and head are 1 MB each.
MODEL = [
    "model.dim=64",
    "model.ffn=96",
    "model.heads=4",
    "model.kv_heads=4",
    "model.layers=1",
    "model.vocab_size=4096",
    "batch.size=8",
    "run.device=cpu",
]
MODES = {
    "plain": [],
    "static graph": ["parallel.static_graph=true"],
    "compiled whole": ["compile.mode=whole", "compile.backend=aot_eager"],
    "compiled whole, static graph, recomputed": [
        "compile.mode=whole",
        "compile.backend=eager",
        "parallel.static_graph=true",
        "parallel.recompute=full",
    ],
    "muster": ["parallel.engine=muster"],
    "muster, compiled blocks": ["parallel.engine=muster", "compile.mode=blocks", "compile.backend=aot_eager"],
    "with a pipeline": ["parallel.pipeline=2", "model.layers=2"],
}


def config(mode: str, *more: str) -> dict[str, Any]:
    return config_of("tiny-llama", [*MODEL, *settings("ddp bucket_mb=1"), *MODES[mode], *more])


def ranks_of(mode: str) -> int:
    """Return the number of ranks: each one compiles for itself, so two are enough there."""
    return 2 if "compiled" in mode else 4


def first_backward(config: dict[str, Any]) -> tuple[int, int, int]:
    """Return, on a rank, the all-reduces of the first step, and the backward nodes after and before the first."""
    from torch.profiler import ProfilerActivity, profile

    step = make_step(from_dict(config))
    batch = share(step, 0)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step.engine.forward_backward(batch, step._loss_fn, 2, None)
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    starts = [event.time_range.start for event in events if event.name == "c10d::allreduce_"]
    nodes = [event.time_range.start for event in events if event.name.startswith("autograd::engine::evaluate_function")]
    after = sum(start > starts[0] for start in nodes)
    return len(starts), after, len(nodes) - after


@pytest.mark.parametrize(
    "mode",
    [
        "plain",
        "static graph",
        pytest.param("compiled whole", marks=pytest.mark.nightly),
        "muster",
        pytest.param("muster, compiled blocks", marks=pytest.mark.nightly),
    ],
)
def test_buckets_are_sent_during_backward_in_the_first_step(mode: str) -> None:
    for count, after, before in on_ranks(f"{__name__}:first_backward", ranks=ranks_of(mode), config=config(mode)):
        assert count == 2
        assert before > 0
        assert after > 3


def test_buckets_have_the_configured_size() -> None:
    results = [
        on_ranks(f"{__name__}:first_backward", config=config("plain", f"parallel.bucket_mb={size}"))[0]
        for size in (1, 25)
    ]
    assert [count for count, _, _ in results] == [2, 1]


def compare_resumed(config: dict[str, Any]) -> bool:
    """Return, on a rank, whether steps 3 and 4 are the same in an uninterrupted run and in one that loads its state."""
    torch.compiler.reset()
    straight, resumed = make_step(from_dict(config)), make_step(from_dict(config))
    run(straight, 2)
    saved = {name: value.detach().clone() for name, value in straight.tensors().items()}
    expected = run(straight, 2)
    for name, value in resumed.tensors().items():
        value.detach().copy_(saved[name])
    resumed.load_state({"step": 2})
    repeated = run(resumed, 2)
    tensors = resumed.tensors()
    # Locally: to compare two DTensors, torch calls all ranks of the world, which may hold other tensors.
    pairs = [(to_local(value), to_local(tensors[name])) for name, value in straight.tensors().items()]
    return repeated == expected and all(torch.equal(value, other) for value, other in pairs)


# By day, test_compiled.py compiles models, and the test above has a static graph.
AT_NIGHT = ("compiled whole, static graph, recomputed", "muster, compiled blocks", "compiled whole", "static graph")


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.nightly if mode in AT_NIGHT else ()) for mode in MODES]
)
def test_a_resumed_run_changes_no_bit(mode: str) -> None:
    ranks = ranks_of(mode)
    assert on_ranks(f"{__name__}:compare_resumed", ranks=ranks, config=config(mode)) == [True] * ranks


def run(step: Step, count: int) -> list[tuple[float, float]]:
    results = [step.run(share(step, step.index), 1) for _ in range(count)]
    return [(float(result.loss), float(result.grad_norm)) for result in results]


def share(step: Step, index: int) -> dict[str, torch.Tensor]:
    mesh = step.engine.mesh
    size = step._config.batch.size // mesh.layout.dp_size
    batch = global_batch(step._config, index)
    return {key: value[mesh.dp_rank * size :][:size] for key, value in batch.items()}
