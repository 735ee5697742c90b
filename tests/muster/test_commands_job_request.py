"""What `muster submit` refuses before it submits: more nodes than there are, and settings the trainer would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.inventory import Inventory, Node, NodeSet
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands.job_request import check_nodes
from muster.commands.train import check_training

REPO = Path(__file__).parents[2]
TRAIN = (REPO / "slurm" / "jobs" / "train.sbatch").read_text()
NODE = Node(name="n", role="compute", address="a", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
LARGE = NodeSet(group="large", count=8, static=0, cpus=8, memory_mb=1024)
INVENTORY = Inventory(
    cluster="c", target="t", nodes=tuple(NODE.model_copy(update={"group": "gpu"}) for _ in range(2)), sets=(LARGE,)
)


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("--nodes=2\n#SBATCH -p gpu", ""),
        ("--nodes=3\n#SBATCH -p gpu", "nodes: job.sbatch requests 3 nodes, but group gpu has 2"),
        ("--nodes=2-9\n#SBATCH -p gpu", ""),
        ("-N 9\n#SBATCH --partition=large", "nodes: job.sbatch requests 9 nodes, but group large has 8"),
        ("--nodes=10", ""),
        ("--nodes=2\n#SBATCH --nodes=11", "nodes: job.sbatch requests 11 nodes, but the cluster has 10"),
        ("--ntasks=11", ""),
        ("-J a -p gpu -N3", "nodes: job.sbatch requests 3 nodes, but group gpu has 2"),
        ("--nodes=2 # --nodes=99", ""),
        ("-p gpu -N 1\n#SBATCH hetjob\n#SBATCH -N 8", ""),
        # The script writes another job.
        ("-N 1\n\n# Then:\ncat >other <<END\n#SBATCH --nodes=99\nEND", ""),
    ],
)
def test_a_job_that_can_never_start_is_refused(directives: str, message: str) -> None:
    job = f"#!/bin/sh\n#SBATCH {directives}\n"
    if not message:
        check_nodes(job, "job.sbatch", INVENTORY, "mine")
        return
    with pytest.raises(Stop) as stop:
        check_nodes(job, "job.sbatch", INVENTORY, "mine")
    assert (stop.value.what, stop.value.code) == (message, BAD_INPUT)
    largest = message.rpartition(" ")[2]
    assert stop.value.fix == f"`make submit JOB=job.sbatch NODES={largest} STACK=mine`, or a larger group"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tiny-lama", "steps=200"], "tiny-lama: neither a preset nor a file; did you mean the preset tiny-llama?"),
        (["tiny-llama", "stepps=200"], "stepps"),
        (["tiny-llama", "run.steps=many"], "run.steps"),
    ],
)
def test_settings_that_the_trainer_would_refuse_are_refused_here(arguments: list[str], problem: str) -> None:
    with pytest.raises(Stop) as stop:
        check_training(TRAIN, arguments)
    assert stop.value.code == BAD_INPUT
    assert f"\n{problem}" in stop.value.what


@pytest.mark.parametrize(
    "arguments",
    [[], ["tiny-llama", "optimizer.lr=1e-4"], ["mine.yaml", "steps=200"], ["/shared/mine"], ["--help"], ["settings"]],
)
def test_files_that_may_exist_only_on_the_cluster_are_left_to_the_trainer(arguments: list[str]) -> None:
    check_training(TRAIN, arguments)


def test_arguments_of_other_jobs_are_not_settings() -> None:
    check_training("#!/bin/sh\nsrun echo $1\n", ["tiny-lama"])
