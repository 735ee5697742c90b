"""Local SGD and DiLoCo: copies train apart, meet in outer steps, resume exactly, and send a fraction of the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.launch import SMALL_LLAMA, assert_finished, forked, lines
from tests.trainer.ranks import on_ranks
from tests.trainer.resumed_rank import train_across_save
from tests.trainer.test_parallel_engines import FEW, settings
from trainer.__main__ import main
from trainer.config.load import from_dict
from trainer.engines.outer_step import is_outer_step, update_shared
from trainer.parallel.gradients import to_local
from trainer.step import Step

HERE = "tests.trainer.test_outer_step"
COPIES = ["ddp", "ddp engine=muster", "hsdp shard=2", "hsdp shard=2 engine=muster"]
NIGHTLY_COPIES = [name if name in COPIES[:1] else pytest.param(name, marks=pytest.mark.nightly) for name in COPIES]


def config_for(strategy: str, inner_steps: int, *more: str) -> dict[str, Any]:
    local = [f"communication.inner_steps={inner_steps}"]
    return config_of("tiny-llama", [*FEW, *settings(strategy), *local, "run.device=cpu", *more])


def test_an_outer_step_is_nesterovs() -> None:
    """The same as torch.optim.SGD with the average difference as gradient."""
    shared, momentum = torch.tensor([1.0, -2.0]), torch.zeros(2)
    weight = torch.nn.Parameter(shared.clone())
    reference = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    for difference in ([0.5, 1.0], [0.25, -1.0], [0.0, 2.0]):
        weight.grad = torch.tensor(difference)
        reference.step()
        update_shared(shared, momentum, torch.tensor(difference), 0.7, 0.9)
        torch.testing.assert_close(shared, weight.detach())
    copies = torch.tensor([[1.0, 5.0], [3.0, -1.0]])
    update_shared(shared, torch.zeros(2), (shared - copies).mean(0), 1.0, 0.0)
    torch.testing.assert_close(shared, copies.mean(0))


def test_copies_meet_after_each_round_and_at_the_end() -> None:
    assert [step for step in range(1, 12) if is_outer_step(step, 4, 11)] == [4, 8, 11]
    assert [step for step in range(1, 4) if is_outer_step(step, 1, 3)] == [1, 2, 3]


PLAIN_SGD = ["optimizer.name=sgd", "optimizer.momentum=0", "optimizer.lr=0.5", "optimizer.clip_norm=0"]


@pytest.mark.parametrize("strategy", NIGHTLY_COPIES)
def test_one_inner_step_of_plain_sgd_is_data_parallelism(strategy: str) -> None:
    """Averaging weights after each step is averaging gradients, if the update is linear in the gradient."""
    average = ["communication.outer_lr=1", "communication.outer_momentum=0"]
    meeting, apart = (config_for(strategy, inner, *PLAIN_SGD, *average) for inner in (1, 8))
    together = config_of("tiny-llama", [*FEW, *settings(strategy), *PLAIN_SGD])
    expected, met, alone = (
        on_ranks("tests.trainer.curves:curve", config=c, micro=1)[0] for c in (together, meeting, apart)
    )
    assert met["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert expected["loss"][-1] < 0.98 * expected["loss"][0]
    # Copies that do not meet learn something else, so the comparison above would show it.
    assert alone["loss"][1:] != pytest.approx(expected["loss"][1:], rel=1e-4)


def share(step: Step, config: Any, index: int) -> dict[str, torch.Tensor]:
    mesh = step.engine.mesh
    size = config.batch.size // mesh.layout.dp_size
    return {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(config, index).items()}


def sum_weights(step: Step) -> float:
    return sum(float(to_local(value).detach().double().sum()) for _, value in step.engine.named_parameters())


def train_with_a_bad_gradient(config: dict[str, Any]) -> dict[str, Any]:
    """Make the gradients of the first rank's copy infinite in the second step; return what each step leaves behind."""
    resolved = from_dict(config)
    step = make_step(resolved)
    skipped, sums = [], []
    for index in range(resolved.steps):
        handles = []
        if index == 1 and dist.get_rank() == 0:
            first = next(value for _, value in step.engine.named_parameters())
            handles = [first.register_hook(lambda gradient: gradient * float("inf"))]
        skipped.append(float(step.run(share(step, resolved, index), 1).skipped))
        for handle in handles:
            handle.remove()
        sums.append(sum_weights(step))
    return {"skipped": skipped, "sums": sums}


def test_copies_differ_between_outer_steps_and_skip_updates_on_their_own() -> None:
    results = on_ranks(f"{HERE}:train_with_a_bad_gradient", config=config_for("ddp", 2, "steps=5"))
    assert [result["skipped"] for result in results] == [[0, rank == 0, 0, 0, 0] for rank in range(4)]
    distinct = [len({result["sums"][step] for result in results}) for step in range(5)]
    assert distinct == [4, 1, 4, 1, 1]
    # The copy without the update has still moved with the others.
    assert results[0]["sums"][0] != results[0]["sums"][1]


def train_and_save(config: dict[str, Any], folder: str, resumes: bool) -> dict[str, Any]:
    trainer, results = train_across_save(config, folder, resumes, lambda trainer: list(trainer.restore_notes))
    momentum = [float(to_local(value).double().norm()) for _, value in trainer._step.outer.named_momentum()]
    return {**results, "momentum": momentum}


@pytest.mark.parametrize("strategy", NIGHTLY_COPIES)
def test_a_run_that_resumes_between_outer_steps_has_the_same_bits(strategy: str, tmp_path: Path) -> None:
    """It saves after step 2, and the copies meet after steps 3 and 4, the last one."""
    config = config_for(strategy, 3, "steps=4", "batch.micro=1")
    straight = on_ranks(f"{HERE}:train_and_save", config=config, folder=str(tmp_path), resumes=False)
    resumed = on_ranks(f"{HERE}:train_and_save", config=config, folder=str(tmp_path), resumes=True)
    assert resumed == straight
    assert [result["measured"] for result in resumed] == [[]] * 4
    assert sum(resumed[0]["momentum"]) > 0


def resume_elsewhere(config: dict[str, Any], folder: str, resumes: bool) -> dict[str, Any]:
    """Return the notes of a resumed run, and sums of this copy's weights and moments when it was saved or loaded."""

    def measure(trainer: Any) -> dict[str, Any]:
        moments = trainer._step.optimizer.tensors()
        sums = {name: float(to_local(value).double().sum()) for name, value in moments.items()}
        return {"notes": list(trainer.restore_notes), "before": sum_weights(trainer._step), "moments": sums}

    _, results = train_across_save(config, folder, resumes, measure)
    return results["measured"]


@pytest.mark.parametrize(
    ("ranks", "inner_steps", "reason"),
    [
        (4, 3, "the ranks are laid out differently now"),
        pytest.param(2, 0, "this run does not use them", marks=pytest.mark.nightly),
    ],
)
def test_other_ranks_or_settings_continue_from_the_shared_weights(
    ranks: int, inner_steps: int, reason: str, tmp_path: Path
) -> None:
    """The run is saved in its first round, so the shared weights are the initial ones."""
    config = config_for("ddp", 3, "steps=4", "batch.micro=1")
    initial = on_ranks(f"{HERE}:sum_initial_weights", ranks=2, config=config)[0]
    saved = on_ranks(f"{HERE}:resume_elsewhere", ranks=2, config=config, folder=str(tmp_path), resumes=False)
    assert len({initial, *(result["before"] for result in saved)}) == 3
    moments = saved[0]["moments"]
    differing = [name for name, value in saved[1]["moments"].items() if value != moments[name]]
    assert len(differing) > len(moments) / 2
    config["communication"]["inner_steps"] = inner_steps
    results = on_ranks(f"{HERE}:resume_elsewhere", ranks=ranks, config=config, folder=str(tmp_path), resumes=True)
    for result in results:
        [note] = result["notes"]
        assert note.startswith(f"not restored, because {reason}: local.model.")
        assert result["before"] == initial
        assert result["moments"] == moments


def sum_initial_weights(config: dict[str, Any]) -> float:
    return sum_weights(make_step(from_dict(config)))


def count_bytes(config: dict[str, Any], steps: int) -> dict[str, float]:
    """Return the bytes of all tensors that a rank has given to all-reduces in some steps, and the figures of a run."""
    resolved = from_dict(config)
    step = make_step(resolved)
    mesh, total, plain = step.engine.mesh, 0, dist.all_reduce

    def count(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return plain(tensor, *args, **kwargs)

    with patch.object(dist, "all_reduce", count):
        for index in range(steps):
            result = step.run(share(step, resolved, index), 1)
            mesh.mean_over_data(result.loss)
    return {"bytes": total, **{name: float(value) for name, value in result.compression.items()}}


def test_fifty_inner_steps_send_a_fiftieth_of_the_bytes() -> None:
    """Counted at torch's all-reduce, which averages everything here: gradients or differences, and losses."""
    common = ["run.device=cpu", "batch.size=4", "steps=100", *settings("ddp engine=muster")]
    whole, rounds = (
        on_ranks(f"{HERE}:count_bytes", ranks=2, config=config_of("tiny-mlp", [*common, *more]), steps=100)
        for more in ([], ["communication.inner_steps=50"])
    )
    for with_gradients, with_rounds in zip(whole, rounds, strict=True):
        assert with_gradients["bytes"] > 49 * with_rounds["bytes"]
        assert with_rounds["compression_ratio"] == 50
        # On two ranks, each sends as many bytes as the tensor has; losses are not counted.
        assert with_rounds["wire_mb"] * 100 * 1e6 == pytest.approx(with_rounds["bytes"], rel=0.01)


def test_a_run_is_evaluated_where_its_copies_meet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A single process evaluates the last checkpoint of two ranks of muster's engine to the same figure."""
    arguments = [*SMALL_LLAMA, "steps=5", "batch.size=8", "batch.micro=1", "data.samples=200", "evaluation.share=0.1"]
    arguments += ["evaluation.every=2", "communication.inner_steps=2", "parallel.strategy=ddp"]
    with forked(2, [*arguments, "parallel.engine=muster", "run.folder=run"], tmp_path) as run:
        assert_finished(run)
    for rank in range(2):
        records = lines(tmp_path / "run" / "metrics" / f"rank-{rank:05d}.jsonl")
        assert [record.get("compression_ratio") for record in records] == [None, 2, 2, 2, 1]
    recorded = lines(tmp_path / "run" / "metrics" / "evaluation-00000.jsonl")
    assert [record["step"] for record in recorded] == [2, 4, 5]
    capfd.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["loss"] == pytest.approx(recorded[-1]["loss"], rel=1e-6)


LEARNED = [
    *(
        "batch.size=32",
        "batch.micro=8",
        "optimizer.lr=3e-3",
        "data.samples=4000",
        "steps=600",
        "checkpoint.every=never",
    ),
    *("evaluation.share=0.1", "evaluation.every=600", "parallel.strategy=ddp"),
]
METHODS = {
    "whole gradients": [],
    "DiLoCo": ["communication.inner_steps=50", "communication.outer_momentum=0.6"],
    "Local SGD": ["communication.inner_steps=50", "communication.outer_lr=1", "communication.outer_momentum=0"],
}


@pytest.mark.nightly
def test_fifty_inner_steps_reach_the_loss_of_averaged_gradients(tmp_path: Path) -> None:
    """On 4 ranks, on held-out samples, after the same number of steps: within 2 %."""
    final = {}
    for number, (name, options) in enumerate(METHODS.items()):
        with forked(4, [*SMALL_LLAMA, *LEARNED, *options, f"run.folder=run-{number}"], tmp_path) as run:
            assert_finished(run)
        final[name] = lines(tmp_path / f"run-{number}" / "metrics" / "evaluation-00000.jsonl")[-1]["loss"]
    print(final)
    assert max(final["DiLoCo"], final["Local SGD"]) < 1.02 * final["whole gradients"]
