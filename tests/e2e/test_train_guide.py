"""The guide "Train a Hugging Face model" of docs/trainer.md on two nodes: from a folder to the report and an export.

The folder is written by `export`, because nodes have no transformers; tests/trainer/test_hf_guide.py opens exports.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.training import TRAIN, Job, checks, completed
from tests.harness import Stack

STEPS, EVERY = 20, 10
RANKS = 4  # two nodes with two GPUs each
TRAINER = 'cd ~ && trainer() { /shared/muster/trainer/run "$@"; }\n'
PREPARE = f"""{TRAINER}
trainer tiny-llama steps=1 run.device=cpu run.folder=$HOME/runs/theirs >theirs.log
trainer export ~/runs/theirs ~/theirs
mkdir text && cp /shared/muster/trainer/*/*.py text/
trainer settings --from ~/theirs >mine.yaml
trainer prepare ~/text --out ~/shards
"""
SUBMIT = f"""cd ~ && sbatch --parsable -N 2 {TRAIN} ~/mine.yaml data.kind=tokens data.path=$HOME/shards \\
  steps={STEPS} batch.size=8 batch.micro=2 optimizer.lr=1e-3 metrics.every=1 run.folder=$HOME/runs/mine \\
  evaluation.share=0.05 evaluation.samples=64 evaluation.every={EVERY} checkpoint.every={EVERY} checkpoint.best=loss"""


@dataclass(frozen=True)
class Guide:
    """What a person sees who follows the guide."""

    job: Job
    page: str
    evaluated: dict[str, Any]
    exported: dict[str, Any]
    """The config.json of the exported model."""


def guide(cluster: Stack) -> Guide:
    cluster.ssh("login", PREPARE)
    job = completed(Job(cluster, cluster.ssh("login", SUBMIT), "/shared/home/muster/runs/mine"))
    page = cluster.ssh("login", f"{TRAINER} trainer report ~/runs/mine >/dev/null && cat ~/runs/mine/report/index.html")
    evaluated = cluster.ssh("login", f"{TRAINER} trainer evaluate ~/runs/mine --json").splitlines()[-1]
    exported = cluster.ssh(
        "login", f"{TRAINER} trainer export --best ~/runs/mine ~/mine >/dev/null && cat ~/mine/config.json"
    )
    return Guide(job, page, json.loads(evaluated), json.loads(exported))


@pytest.mark.nightly
@checks(guide)
def test_a_hugging_face_folder_is_trained_on_two_nodes_evaluated_and_exported(result: Guide) -> None:
    losses, evaluations = result.job.losses(), result.job.events("evaluated")
    assert len(result.job.shards(STEPS)) == RANKS
    assert losses[STEPS] < losses[1]
    assert [event["step"] for event in evaluations] == [EVERY, STEPS]
    assert f"finished: all {STEPS} steps done" in result.job.log
    assert "evaluation loss" in result.page
    assert result.evaluated["step"] == STEPS
    # All ranks and one process add up in different orders.
    assert result.evaluated["loss"] == pytest.approx(evaluations[-1]["loss"], rel=1e-3)
    assert result.exported["architectures"] == ["LlamaForCausalLM"]
    result.job.stack.ssh("login", "test -s ~/mine/model.safetensors")
