"""A killed and resumed run equals an uninterrupted one bit for bit: every loss and the last checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.test_resume import CASES as GPU_CASES
from tests.trainer.launch import (
    REPO,
    SMALL_LLAMA,
    assert_finished,
    checkpoint,
    checkpoint_steps,
    digests,
    events,
    forked,
    kill_when_held,
    lines,
    losses,
)

STEPS = 12
# Both runs use the same folder name, because the settings are part of a checkpoint.
SETTINGS = [f"steps={STEPS}", "checkpoint.every=4", "batch.size=8", "batch.micro=1", "run.folder=run"]
SETTINGS += ["data.samples=200", "evaluation.share=0.1", "evaluation.every=2"]
GPT2 = ["tiny-gpt2", "model.layers=2", "model.dim=32", "model.seq_len=16", "model.dropout=0.1", *SMALL_LLAMA[5:]]
UNTIED_GPT2 = [*GPT2, "model.tie_embeddings=false"]
MOE = ["tiny-moe", "model.dim=32", "model.seq_len=16", "model.balance=bias", "parallel.expert=2", *SMALL_LLAMA[5:]]
CASES = {
    "fsdp, dropout": (2, [*GPT2, "parallel.strategy=fsdp", "precision=bf16"]),
    "single": (1, [*GPT2, "parallel.strategy=single"]),
    "ddp": (4, [*GPT2, "parallel.strategy=ddp"]),
    "ddp, muster": (4, [*GPT2, "parallel.strategy=ddp", "parallel.engine=muster"]),
    "fsdp": (4, [*SMALL_LLAMA, "parallel.strategy=fsdp", "precision=bf16"]),
    "hsdp": (4, [*SMALL_LLAMA, "parallel.strategy=hsdp", "parallel.shard=2"]),
    "fsdp, muster": (4, [*GPT2, "parallel.strategy=fsdp", "parallel.engine=muster", "precision=bf16"]),
    "hsdp, muster": (4, [*SMALL_LLAMA, "parallel.strategy=hsdp", "parallel.shard=2", "parallel.engine=muster"]),
    "tensor": (2, [*GPT2, "parallel.strategy=single", "parallel.tensor=2"]),
    "tensor, muster": (
        2,
        [*SMALL_LLAMA, "parallel.strategy=single", "parallel.tensor=2", "parallel.engine=muster", "precision=bf16"],
    ),
    "tensor with fsdp": (4, [*SMALL_LLAMA, "parallel.strategy=fsdp", "parallel.tensor=2"]),
    "context": (2, [*GPT2, "parallel.strategy=single", "parallel.context=2"]),
    "pipeline": (2, [*UNTIED_GPT2, "parallel.strategy=single", "parallel.pipeline=2"]),
    "pipeline with fsdp": (4, [*SMALL_LLAMA, "parallel.strategy=fsdp", "parallel.pipeline=2"]),
    "pipeline, interleaved, with ddp": (
        4,
        [
            *UNTIED_GPT2,
            "parallel.strategy=ddp",
            "parallel.pipeline=2",
            "parallel.schedule=interleaved",
            "model.layers=4",
        ],
    ),
    "pipeline, zero bubble, muster": (
        2,
        [
            *UNTIED_GPT2,
            *("parallel.strategy=single", "parallel.pipeline=2"),
            *("parallel.schedule=zero_bubble", "parallel.engine=muster"),
        ],
    ),
    "pipeline with fsdp, muster": (
        4,
        [*SMALL_LLAMA, "parallel.strategy=fsdp", "parallel.pipeline=2", "parallel.engine=muster"],
    ),
    "fsdp, zero 1, muster": (
        2,
        [*GPT2, "parallel.strategy=fsdp", "parallel.zero=1", "parallel.engine=muster"],
    ),
    "fsdp, zero 2, muster": (
        2,
        [*SMALL_LLAMA, "parallel.strategy=fsdp", "parallel.zero=2", "parallel.engine=muster", "precision=bf16"],
    ),
    "pipeline, interleaved, with ddp, muster": (
        4,
        [
            *UNTIED_GPT2,
            *("parallel.strategy=ddp", "parallel.pipeline=2", "parallel.schedule=interleaved", "model.layers=4"),
            "parallel.engine=muster",
        ],
    ),
    "pipeline with hsdp, muster": (
        4,
        [
            *SMALL_LLAMA,
            *("parallel.strategy=hsdp", "parallel.shard=1", "parallel.pipeline=2"),
            *("parallel.schedule=zero_bubble", "parallel.engine=muster"),
        ],
    ),
    "tensor with pipeline": (4, [*UNTIED_GPT2, "parallel.strategy=single", "parallel.tensor=2", "parallel.pipeline=2"]),
    "fsdp, muon": (4, [*SMALL_LLAMA, "parallel.strategy=fsdp", "optimizer.name=muon"]),
    "ddp, experts": (4, [*MOE, "parallel.strategy=ddp"]),
    "fsdp, experts": (4, [*MOE, "parallel.strategy=fsdp", "precision=bf16"]),
    "ddp, int8": (2, [*SMALL_LLAMA, "parallel.strategy=ddp", "optimizer.moments=int8"]),
    "ddp, documents": (2, [*SMALL_LLAMA, "parallel.strategy=ddp", "data.documents=separate"]),
    "context with fsdp": (2, [*GPT2, "parallel.strategy=fsdp", "parallel.context=2"]),
    "ddp, topk": (4, [*SMALL_LLAMA, "parallel.strategy=ddp", "communication.compression=topk"]),
    "ddp, randomk": (2, [*SMALL_LLAMA, "parallel.strategy=ddp", "communication.compression=randomk"]),
    "ddp, powersgd": (2, [*SMALL_LLAMA, "parallel.strategy=ddp", "communication.compression=powersgd"]),
    "hsdp, topk": (
        4,
        [*SMALL_LLAMA, "parallel.strategy=hsdp", "parallel.shard=2", "communication.compression=topk"],
    ),
    "ddp, inner steps": (4, [*SMALL_LLAMA, "parallel.strategy=ddp", "communication.inner_steps=2"]),
    "hsdp, inner steps, muster": (
        4,
        [
            *SMALL_LLAMA,
            *("parallel.strategy=hsdp", "parallel.shard=2", "parallel.engine=muster"),
            *("communication.inner_steps=2", "precision=bf16"),
        ],
    ),
    "fsdp, fp8": (2, [*SMALL_LLAMA, "parallel.strategy=fsdp", "precision=bf16", "fp8.scaling=tensor"]),
    "fsdp, delayed fp8": (2, [*SMALL_LLAMA, "parallel.strategy=fsdp", "precision=bf16", "fp8.scaling=delayed"]),
    "fsdp, bf16": (2, [*SMALL_LLAMA, "parallel.strategy=fsdp", "optimizer.moments=bf16"]),
}
# By day, test_parallel_ddp.py, test_engine_fsdp.py, test_optimizer_ranks.py, test_run_documents.py, test_dropout.py,
# test_compressed_training.py and test_outer_step.py show it for the others without a launch.
DAILY = ("fsdp, dropout",)


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in CASES]
)
def test_kill_and_resume_change_no_bit(strategy: str, tmp_path: Path) -> None:
    ranks, arguments = CASES[strategy]
    arguments = [*arguments, *SETTINGS]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with forked(ranks, arguments, straight) as run:
        assert_finished(run)

    # The last rank is held, the others wait for it in a collective, and writers may be writing the files of step 8.
    with forked(ranks, arguments, killed, hold=(ranks - 1, 10)) as run:
        resumed_from = kill_when_held(run, killed / "run")
    assert resumed_from in (4, 8)
    with forked(ranks, arguments, killed) as run:
        assert_finished(run)

    loaded = events(killed / "run", "loaded")
    assert [event["step"] for event in loaded] == [resumed_from]
    assert losses(killed / "run") == losses(straight / "run")
    assert evaluations(killed / "run") == evaluations(straight / "run")
    assert [step for step, _, _ in evaluations(straight / "run")] == [2, 4, 6, 8, 10, 12]
    assert sorted(losses(straight / "run")) == list(range(1, STEPS + 1))
    assert checkpoint_steps(killed / "run")[-1] == STEPS
    assert digests(killed / "run", STEPS) == digests(straight / "run", STEPS)
    assert state(killed / "run") == state(straight / "run")


@pytest.mark.parametrize(
    ("begin", "end", "cases"),
    [
        ("Tests kill and resume runs on CPU with", "some of them with dropout", CASES),
        ("On one GPU, with `run.deterministic=true`, they do so with", "Other combinations", GPU_CASES),
    ],
    ids=["CPU", "GPU"],
)
def test_the_documentation_promises_exactly_these_cases(begin: str, end: str, cases: dict[str, Any]) -> None:
    text = (REPO / "docs" / "trainer.md").read_text(encoding="utf-8")
    listed = text.split(begin)[1].split(end)[0]
    assert set(re.findall("`([^`]*)`", listed)) == set(cases)


def evaluations(folder: Path) -> list[tuple[int, float, float]]:
    content = lines(folder / "metrics" / "evaluation-00000.jsonl")
    return [(line["step"], line["loss"], line["accuracy"]) for line in content]


def state(folder: Path) -> dict[str, Any]:
    """Return the saved state without the recent losses: the loss of a step is not known yet when it is saved."""
    content: dict[str, Any] = json.loads((checkpoint(folder, STEPS) / "state.json").read_text())
    del content["extra"]["health"]
    return content
