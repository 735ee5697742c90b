"""The trainer's own image, built from trainer/Dockerfile: under Slurm and with docker, as without it bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from setup import pins
from tests.e2e.trainer_image import require_trainer_image
from tests.e2e.training import QUICK, RANKS, SMALL, STEPS, STRATEGIES, Job, Undisturbed, checks, completed, submit
from tests.harness import REPO, Stack

pytestmark = pytest.mark.nightly

DOCKERFILE = REPO / "trainer" / "Dockerfile"
IMAGE = "/shared/images/trainer"
STRATEGY = "fsdp"


@dataclass(frozen=True)
class Contained:
    """A job in the image, and where its trainer and Python are."""

    job: Job
    places: str


def contained(cluster: Stack) -> Contained:
    require_trainer_image()
    # Its layers are there already; BuildKit, where it is installed, has layers of its own.
    builder = replace(cluster, env={**cluster.env, "DOCKER_BUILDKIT": "0"})
    base = f"BASE={pins.TRAINER_BASE_IMAGE}"
    builder.muster("image job", str(DOCKERFILE), "--name", "trainer", "--build-arg", base, timeout=1200)
    job = completed(submit(cluster, "contained", STRATEGY, *QUICK, variables=f"CONTAINER={IMAGE}"))
    show = "python -c 'import sys, trainer, torch; print(sys.prefix, trainer.__file__, torch.__file__)'"
    return Contained(job, cluster.ssh("login", f"cd ~ && srun -Q -p gpu -N1 --container={IMAGE} {show}"))


@checks(contained)
def test_a_job_in_the_image_trains_as_one_without_it(result: Contained, undisturbed: Undisturbed) -> None:
    assert all(place.startswith("/opt/muster/") for place in result.places.split()), result.places
    assert result.job.losses() == undisturbed(STRATEGY).losses()
    assert result.job.shards(STEPS) == undisturbed(STRATEGY).shards(STEPS)


def test_the_image_trains_with_docker_as_the_cluster_does(undisturbed: Undisturbed, tmp_path: Path) -> None:
    require_trainer_image()
    # The owner of the folder of runs, who has no account in the image.
    os.chown(tmp_path, 4321, 4321)
    box = ["--rm", "--label", "muster.cluster=image-tests", "--network", "none", "--hostname", "localhost"]
    box += ["--read-only", "--tmpfs", "/tmp:exec", "--shm-size", "1g", "--cap-drop", "ALL"]
    box += ["--user", "4321:4321", "-v", f"{tmp_path}:/runs", "-e", "OMP_NUM_THREADS=1", "--entrypoint", "python"]
    ranks = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS[STRATEGY]}", "-m", "trainer")
    settings = (*SMALL, f"steps={STEPS}", *STRATEGIES[STRATEGY], *QUICK, "run.folder=/runs/tiny")
    command = ["docker", "run", *box, pins.TRAINER_IMAGE, *ranks, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = undisturbed(STRATEGY)
    assert read_losses(tmp_path / "tiny") == reference.losses()
    assert read_shards(tmp_path / "tiny") == reference.shards(STEPS)


def read_losses(folder: Path) -> dict[int, float]:
    lines = map(json.loads, (folder / "metrics/rank-00000.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines}


def read_shards(folder: Path) -> dict[str, Any]:
    files = json.loads((folder / f"checkpoints/step-{STEPS:08d}/manifest.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}
