"""A training job on a real Kubernetes cluster: lost pods and nodes, drains, and people's own commands.

An indexed Job: the cluster has no JobSet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k8s.job import INDEXED_JOB, TrainingJob
from k8s.manifests import TENSORBOARD_PORT
from k8s.names import TENSORBOARD, TRAINER, name_tensorboard, select
from setup import pins
from setup.paths import Paths
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.e2e.kubernetes.images import REPO, TRAINER_IMAGE, build_trainer, find_environment
from tests.e2e.kubernetes.requirements import find_lacking
from tests.harness import wait_until
from trainer.checkpoint.folder import list_published

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

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

    def muster(self, *arguments: str) -> str:
        """Run `muster kubernetes` with the cluster's kubectl and return its output."""
        path = f"{self.cluster.control_plane.kubectl_folder}:{os.environ['PATH']}"
        command = [sys.executable, "-m", "muster", "kubernetes", *arguments, f"--namespace={NAMESPACE}"]
        done = subprocess.run(
            command, cwd=REPO, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def apply(self, name: str, steps: int, *options: str) -> None:
        """Start a job of two nodes with a rank on each."""
        job = ("--form", INDEXED_JOB, "--image", TRAINER_IMAGE, "--name", name, "--claim", CLAIM, "--memory", "2Gi")
        self.muster("apply", *SETTINGS, f"steps={steps}", *job, *options)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the namespace of the jobs."""
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", *arguments)

    def list_pods(self, name: str, component: str = TRAINER) -> list[dict[str, Any]]:
        """Return the pods that have not ended and are not about to, in the order of their indexes."""
        pods = self.cluster.get("pods", f"--namespace={NAMESPACE}", f"--selector={select(name, component)}")["items"]
        alive = [pod for pod in pods if pod["status"]["phase"] == "Running" and not is_deleted(pod)]
        return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))

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

    def wait_for_end(self, name: str) -> str:
        """Return the state in which a job ends: the type of its final condition."""
        ends: list[str] = []

        def has_ended() -> bool:
            job = self.cluster.get("job", name, f"--namespace={NAMESPACE}")
            parts = job.get("status", {}).get("conditions", [])
            ends[:] = [
                part["type"] for part in parts if part["status"] == "True" and part["type"] in {"Complete", "Failed"}
            ]
            return bool(ends)

        wait_until(has_ended, f"end of {name}", TIMEOUT_S)
        return ends[0]

    def read_restarts(self, name: str) -> list[str]:
        """Return why the pods of a job started again."""
        lines = (self.claim / name / "requeues").read_text().splitlines()
        return [line.split(" ", 4)[-1] for line in lines]

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
        launcher = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer"]
        mounts = ["-v", f"{self.claim}:/runs", "-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "--shm-size", "1g"]
        # Without a network, torchrun finds no other name of the container.
        network = ["--network", "none", "--hostname", "localhost"]
        box = ["docker", "run", "--rm", "--label", "muster.cluster=kubernetes-tests", *network, *mounts]
        command = [*box, "-e", "OMP_NUM_THREADS=1", TRAINER_IMAGE, *launcher, *SETTINGS]
        subprocess.run(
            [*command, f"steps={steps}", f"run.folder=/runs/{name}"], check=True, capture_output=True, text=True
        )


def is_deleted(pod: dict[str, Any]) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    if lacking := find_lacking(Paths.from_environment()):
        pytest.skip(f"{', '.join(lacking)} missing: run `python3 -m setup kubernetes` as root")
    folder = tmp_path_factory.mktemp("kubernetes")
    claim = folder / "claim"
    claim.mkdir()
    os.chown(claim, TrainingJob.user, TrainingJob.user)
    build_trainer()
    with running_cluster(folder, [TRAINER_IMAGE], [find_environment()], count=3) as cluster:
        cluster.kubectl("apply", "--filename=-", data=STORAGE.format(namespace=NAMESPACE, claim=CLAIM, folder=claim))
        yield Training(cluster, claim)


def test_a_run_survives_lost_pods_and_nodes_bit_for_bit(training: Training) -> None:
    cluster, name = training.cluster, "llama"
    training.apply(name, ENDLESS, "--tensorboard-image", TRAINER_IMAGE)
    training.wait_for_newer_checkpoint(name)
    first, second = training.wait_for_pods(name)
    assert first["spec"]["nodeName"] != second["spec"]["nodeName"]
    check_own_commands(training, name)

    container = second["status"]["containerStatuses"][0]["containerID"]
    cluster.nodes[second["spec"]["nodeName"]].kill_container(container)
    wait_for_other_pods(training, name, [first, second])
    training.wait_for_newer_checkpoint(name)

    before = training.wait_for_pods(name)
    lost = before[1]["spec"]["nodeName"]
    cluster.nodes[lost].lose()
    wait_until(lambda: lost not in cluster.list_ready_nodes(), f"loss of {lost}", TIMEOUT_S)
    # Until somebody says that the node is off, Kubernetes cannot know that its pod has ended.
    taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    cluster.kubectl("taint", "node", lost, taint)
    after = wait_for_other_pods(training, name, before)
    assert lost not in {pod["spec"]["nodeName"] for pod in after}
    training.wait_for_newer_checkpoint(name)
    cluster.nodes[lost].start()
    cluster.kubectl("taint", "node", lost, f"{taint}-")
    wait_until(lambda: lost in cluster.list_ready_nodes(), f"return of {lost}", TIMEOUT_S)

    drained = after[0]["spec"]["nodeName"]
    cluster.kubectl("drain", drained, "--delete-emptydir-data", "--force", timeout_s=TIMEOUT_S)
    wait_for_other_pods(training, name, after)
    training.wait_for_newer_checkpoint(name)
    cluster.kubectl("uncordon", drained)

    saved = training.find_newest_step(name)
    training.muster("delete", name)
    assert training.list_pods(name) == []
    steps = training.find_newest_step(name)
    assert steps > saved
    # Pods that are replaced join the others; only those of the drained node made all of them start again.
    assert training.read_restarts(name) == ["preempted"]

    training.apply(name, steps + 10)
    assert training.wait_for_end(name) == "Complete"
    assert "Complete" in training.muster("status", name)
    training.train_undisturbed("undisturbed", steps + 10)
    assert training.read_losses(name) == training.read_losses("undisturbed")
    assert training.read_checksums(name, steps + 10) == training.read_checksums("undisturbed", steps + 10)
    training.muster("delete", name)


def test_a_run_is_stopped_by_hand(training: Training) -> None:
    name = "stopped"
    training.apply(name, ENDLESS)
    training.wait_for_newer_checkpoint(name)
    pod = training.wait_for_pods(name)[0]["metadata"]["name"]
    training.kubectl("exec", pod, "--", "touch", f"/runs/{name}/stop")
    assert training.wait_for_end(name) == "Failed"
    outcome = json.loads((training.claim / name / "outcome.json").read_text())
    assert outcome["outcome"] == "stopped"
    training.muster("delete", name)


def test_every_object_is_accepted_by_the_api_server(training: Training) -> None:
    options = ("--form", INDEXED_JOB, "--storage", "1Gi", "--gpus", "8", "--tensorboard-image", TRAINER_IMAGE)
    devices = ("--rdma", "rdma/hca=8", "--data-claim", "tokens", "--topology", "topology.kubernetes.io/zone")
    manifests = training.muster("render", "tiny-llama", "batch.size=16", "--image", "a", *options, *devices)
    answer = training.cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", data=manifests
    )
    assert answer.count("serverside-applied (server dry run)") == manifests.count("\nkind: "), answer


def wait_for_other_pods(training: Training, name: str, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods of a job once all of them run and the last of those before has been replaced."""
    lost = before[-1]["metadata"]["uid"]
    wait_until(
        lambda: lost not in {pod["metadata"]["uid"] for pod in training.list_pods(name)},
        f"end of {before[-1]['metadata']['name']}",
        TIMEOUT_S,
    )
    return training.wait_for_pods(name)


def check_own_commands(training: Training, name: str) -> None:
    """Check the commands that `muster kubernetes apply` prints: pods and logs by label, and TensorBoard."""
    trainer = select(name, TRAINER)
    pods = training.kubectl("get", "pods", f"--selector={trainer}", "--output=name").split()
    assert len(pods) == 2
    logs = training.kubectl("logs", f"--selector={trainer}", "--tail=-1", "--prefix")
    assert [f"node {index} of 2" in logs for index in range(2)] == [True, True], logs
    wait_until(lambda: len(training.list_pods(name, TENSORBOARD)) == 1, "TensorBoard", TIMEOUT_S)
    assert "loss" in read_tensorboard(training, name)


def read_tensorboard(training: Training, name: str) -> str:
    """Return the names of the scalars that TensorBoard shows, through a forwarded port."""
    plane = training.cluster.control_plane
    forward = ["port-forward", f"--namespace={NAMESPACE}", f"service/{name_tensorboard(name)}", str(TENSORBOARD_PORT)]
    url = f"http://127.0.0.1:{TENSORBOARD_PORT}/data/plugin/scalars/tags"
    answers: list[str] = []

    def is_answered() -> bool:
        # kubectl listens where the cluster is.
        done = subprocess.run(plane.namespace.enter("curl", "-sf", url), capture_output=True, text=True, check=False)
        # TensorBoard reads the run's folder every few seconds.
        answers[:] = [done.stdout] if done.returncode == 0 and "loss" in done.stdout else []
        return bool(answers)

    plane.namespace.start("port-forward", plane.kubectl_folder / "kubectl", *forward)
    try:
        wait_until(is_answered, "TensorBoard through a forwarded port", TIMEOUT_S)
    finally:
        plane.namespace.end("port-forward")
    return answers[0]
