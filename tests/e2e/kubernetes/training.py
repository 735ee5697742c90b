"""Training jobs on a test's Kubernetes cluster: start them, find their pods, and read what they leave on the claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s.job import TrainingJob
from k8s.names import TRAINER, select
from setup import pins
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.e2e.kubernetes.images import REPO
from tests.harness import wait_until
from trainer.checkpoint.folder import list_published

NAMESPACE = "research"
CLAIM = "runs"
# With a constant rate, a run with more steps is the same up to there.
SETTINGS = (
    *("tiny-llama", "parallel.strategy=ddp", "schedule.kind=constant", "schedule.warmup=0", "run.device=cpu"),
    *("batch.size=4", "batch.micro=2", "checkpoint.every=20", "metrics.every=1", "metrics.profile_every=0"),
    "metrics.peak_tflops=1",
)
ENDLESS = 1_000_000
TIMEOUT_S = 600.0
# Of an indexed Job and of a JobSet.
ENDS = frozenset({"Complete", "Completed", "Failed"})
STORAGE = """
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {claim}}}
spec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteMany], storageClassName: "", hostPath: {{path: {folder}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {claim}, namespace: {namespace}}}
spec:
  storageClassName: ""
  volumeName: {claim}
  accessModes: [ReadWriteMany]
  resources: {{requests: {{storage: 1Gi}}}}
"""


@dataclass
class Training:
    """A cluster with a claim that all nodes share, and the commands of a person who trains there."""

    cluster: Cluster
    claim: Path
    image: str
    """Image of the trainer, which all nodes have."""

    def muster(self, *arguments: str) -> str:
        """Run `muster kubernetes` with the cluster's kubectl and return its output."""
        path = f"{self.cluster.control_plane.kubectl_folder}:{os.environ['PATH']}"
        command = [sys.executable, "-m", "muster", "kubernetes", *arguments, f"--namespace={NAMESPACE}"]
        done = subprocess.run(
            command, cwd=REPO, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def apply(self, name: str, form: str, steps: int, *options: str) -> None:
        """Start a job of two nodes with a rank on each."""
        job = ("--form", form, "--image", self.image, "--name", name, "--claim", CLAIM, "--memory", "2Gi")
        self.muster("apply", *SETTINGS, f"steps={steps}", *job, *options)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace of the jobs."""
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)

    def list_pods(self, name: str, component: str = TRAINER) -> list[dict[str, Any]]:
        """Return the pods that have not ended and are not about to, in the order of their indexes."""
        pods = self.cluster.get("pods", f"--namespace={NAMESPACE}", f"--selector={select(name, component)}")["items"]
        alive = [pod for pod in pods if pod["status"]["phase"] == "Running" and not is_deleted(pod)]
        return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))

    def list_conditions(self, name: str) -> set[str]:
        """Return the reasons of the conditions of all pods of a job."""
        pods = self.cluster.get("pods", f"--namespace={NAMESPACE}", f"--selector={select(name, TRAINER)}")["items"]
        return {part.get("reason", "") for pod in pods for part in pod["status"].get("conditions", ())}

    def wait_for_pods(self, name: str, count: int = 2) -> list[dict[str, Any]]:
        """Return the pods of a job once all of them run."""
        wait_until(lambda: len(self.list_pods(name)) == count, f"{count} pods of {name}", TIMEOUT_S)
        return self.list_pods(name)

    def find_newest_step(self, name: str) -> int:
        """Return the step of the newest checkpoint; 0 if there is none."""
        published = list_published(self.claim / name / "checkpoints")
        return published[0].step if published else 0

    def wait_for_newer_checkpoint(self, name: str) -> None:
        """Wait until the ranks have made progress."""
        before = self.find_newest_step(name)
        what = f"a checkpoint of {name} that is newer than step {before}"
        wait_until(lambda: self.find_newest_step(name) > before, what, TIMEOUT_S)

    def wait_for_end(self, name: str, form: str) -> str:
        """Return the state in which a job ends: the type of its final condition."""
        ends: list[str] = []

        def has_ended() -> bool:
            job = self.cluster.get(form, name, f"--namespace={NAMESPACE}")
            parts = job.get("status", {}).get("conditions", [])
            ends[:] = [part["type"] for part in parts if part["status"] == "True" and part["type"] in ENDS]
            return bool(ends)

        wait_until(has_ended, f"end of {name}", TIMEOUT_S)
        return ends[0]

    def read_restarts(self, name: str) -> list[str]:
        """Return why the pods of a job started again."""
        lines = (self.claim / name / "requeues").read_text().splitlines()
        return [line.split(" ", 4)[-1] for line in lines]

    def count_starts(self, name: str) -> int:
        """Return how often the ranks of a run started."""
        events = map(json.loads, (self.claim / name / "events.jsonl").read_text().splitlines())
        return sum(event["event"] == "started" for event in events)

    def read_losses(self, name: str) -> dict[int, float]:
        """Return the loss of each step, of the last time that it ran."""
        lines = map(json.loads, (self.claim / name / "metrics/rank-00000.jsonl").read_text().splitlines())
        return {line["step"]: line["loss"] for line in lines}

    def read_checksums(self, name: str, step: int) -> dict[str, str]:
        """Return the checksums of the tensors of a checkpoint."""
        manifest = self.claim / name / "checkpoints" / f"step-{step:08d}" / "manifest.json"
        files = json.loads(manifest.read_text())["files"]
        return {file: entry["sha256"] for file, entry in files.items() if file.startswith("shard-")}

    def train_undisturbed(self, name: str, steps: int) -> None:
        """Train with torchrun alone, with as many ranks in one container of the same image."""
        entry, launcher = (
            ["--entrypoint", "python"],
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer"],
        )
        mounts = ["-v", f"{self.claim}:/runs", "-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "--shm-size", "1g"]
        # Without a network, torchrun finds no other name of the container.
        network = ["--network", "none", "--hostname", "localhost"]
        box = ["docker", "run", "--rm", "--label", "muster.cluster=kubernetes-tests", *network, *mounts]
        command = [*box, "-e", "OMP_NUM_THREADS=1", *entry, self.image, *launcher, *SETTINGS]
        subprocess.run(
            [*command, f"steps={steps}", f"run.folder=/runs/{name}"], check=True, capture_output=True, text=True
        )


@contextmanager
def running_training(folder: Path, image: str, mounts: Sequence[tuple[Path, str]], count: int) -> Iterator[Training]:
    """Start a cluster whose nodes have an image of the trainer and share a claim."""
    claim = folder / "claim"
    claim.mkdir()
    os.chown(claim, TrainingJob.user, TrainingJob.user)
    with running_cluster(folder, [image], mounts, count=count) as cluster:
        cluster.kubectl("apply", "--filename=-", data=STORAGE.format(namespace=NAMESPACE, claim=CLAIM, folder=claim))
        yield Training(cluster, claim, image)


def is_deleted(pod: dict[str, Any]) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]
