"""Pods of a rendered job as containers, with the security settings and variables of their manifests.

Not Kubernetes: the test plays its part, starts containers and sends the signals. Containers have their own network
address, process namespace and read-only root filesystem, and find each other by the name in the manifest.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from k8s.job import TrainingJob
from k8s.manifests import render
from k8s.names import name_head
from setup import env, pins
from setup.paths import Paths
from tests.k8s.test_manifests import find_pod

pytestmark = pytest.mark.nightly

REPO = Path(__file__).resolve().parents[2]
PYTHON = f"/shared/env/{env.key(Paths(root=REPO, cache=Path()))}/bin/python"
# With a constant rate, a run with more steps is the same up to there.
SETTINGS = (
    *("tiny-llama", "parallel.strategy=ddp", "schedule.kind=constant", "schedule.warmup=0", "run.device=cpu"),
    *("batch.size=4", "batch.micro=2", "checkpoint.every=20", "metrics.every=1", "metrics.profile_every=0"),
    "metrics.peak_tflops=1",
)
ENDLESS = 1_000_000
TIMEOUT_S = 300.0
REQUEUE = 75


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, text=True, capture_output=True).stdout.strip()


@dataclass
class Pods:
    """Containers, a network and a volume with one label; the volume is the claim for runs."""

    job: TrainingJob
    label: str = field(default_factory=lambda: f"muster.cluster=pods-{uuid.uuid4().hex[:8]}")

    @property
    def volume(self) -> str:
        return self.label.partition("=")[2]

    def open(self) -> None:
        docker("network", "create", "--label", self.label, self.volume)
        docker("volume", "create", "--label", self.label, self.volume)
        user = str(self.job.user)
        docker(
            "run",
            "--rm",
            "--label",
            self.label,
            "-v",
            f"{self.volume}:/runs",
            pins.NODE_IMAGE,
            "chown",
            f"{user}:{user}",
            "/runs",
        )

    def close(self) -> None:
        for kind, remove in (("container", ["rm", "-f"]), ("network", ["rm"]), ("volume", ["rm"])):
            everything = ["-a"] if kind == "container" else []
            for name in docker(kind, "ls", *everything, "-q", "--filter", f"label={self.label}").split():
                docker(kind, *remove, name)

    def start(self, index: int, attempt: str, steps: int) -> str:
        """Start the pod with this index, as its manifest says, and return the id of its container."""
        job = replace(self.job, arguments=(*self.job.arguments, f"steps={steps}"))
        pod = find_pod(render(job))
        (container,) = pod["containers"]
        variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        variables |= {"JOB_COMPLETION_INDEX": str(index), "MUSTER_JOB": "job", "MUSTER_ATTEMPT": attempt}
        name = ["--network-alias", name_head(job)] if index == 0 else []
        # The image has another place for Python, and Kubernetes knows the address.
        script = f'MUSTER_POD_IP=$(hostname -i) exec {PYTHON} {" ".join(container["command"][1:])} "$@"'
        return self._run(
            "-d", *name, variables=variables, pod=pod, command=["sh", "-c", script, "pod", *container["args"]]
        )

    def run_undisturbed(self, steps: int, folder: str) -> None:
        """Train with the same ranks in one container that nothing disturbs."""
        pod = find_pod(render(self.job))
        launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.job.nodes}"]
        command = [*launcher, "-m", "trainer", *SETTINGS, f"steps={steps}", f"run.folder={folder}"]
        self._run("--rm", variables={"OMP_NUM_THREADS": "1", "HOME": "/tmp"}, pod=pod, command=command)

    def read(self, file: str) -> str:
        """Return the text of a file on the claim, empty if there is none."""
        shell = ["sh", "-c", f"cat /runs/{file} 2>/dev/null || true"]
        return docker("run", "--rm", "--label", self.label, "-v", f"{self.volume}:/runs", pins.NODE_IMAGE, *shell)

    def losses(self, folder: str) -> dict[int, float]:
        lines = [json.loads(line) for line in self.read(f"{folder}/metrics/rank-00000.jsonl").splitlines()]
        return {line["step"]: line["loss"] for line in lines}

    def checksums(self, folder: str, step: int) -> dict[str, Any]:
        files = json.loads(self.read(f"{folder}/checkpoints/step-{step:08d}/manifest.json"))["files"]
        return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}

    def newest_step(self) -> int:
        shell = ["sh", "-c", f"ls {self.job.run_folder}/checkpoints 2>/dev/null || true"]
        mount = ["-v", f"{self.volume}:/runs"]
        names = docker("run", "--rm", "--label", self.label, *mount, pins.NODE_IMAGE, *shell).split()
        return max((int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdecimal()), default=0)

    def _run(self, *options: str, variables: dict[str, str], pod: dict[str, Any], command: list[str]) -> str:
        security = pod["securityContext"]
        flags = [
            "--label",
            self.label,
            "--network",
            self.volume,
            "--user",
            f"{security['runAsUser']}:{security['runAsGroup']}",
        ]
        flags += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp:exec"]
        flags += ["--shm-size", "1g", "-v", f"{self.volume}:/runs", "-v", f"{pins.ENV_VOLUME}:/shared/env:ro"]
        flags += ["-v", f"{REPO / 'trainer'}:/opt/muster/trainer:ro", "-w", "/tmp", "-e", "PYTHONPATH=/opt/muster"]
        flags += [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        return docker("run", *options, *flags, pins.NODE_IMAGE, *command)


@pytest.fixture
def pods() -> Iterator[Pods]:
    job = TrainingJob(name="llama", image="image", arguments=SETTINGS, claim="runs", nodes=2, ranks=1)
    pods = Pods(job)
    try:
        pods.open()
        yield pods
    finally:
        pods.close()


def wait_until(condition: Callable[[], bool], what: str, *containers: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"no {what}:\n" + "\n".join(docker("logs", name) for name in containers)
        time.sleep(1)


def wait_for_exit(container: str) -> int:
    wait_until(lambda: docker("inspect", "--format", "{{.State.Running}}", container) == "false", "end", container)
    return int(docker("inspect", "--format", "{{.State.ExitCode}}", container))


def test_a_lost_pod_and_an_evicted_one_continue_bit_for_bit(pods: Pods) -> None:
    first, lost = pods.start(0, "1", ENDLESS), pods.start(1, "1", ENDLESS)
    wait_until(lambda: pods.newest_step() > 0, "checkpoint", first, lost)
    docker("kill", "--signal", "KILL", lost)
    # As a JobSet does: the pods that are left get SIGTERM, and all start again.
    docker("kill", "--signal", "TERM", first)
    assert (wait_for_exit(lost), wait_for_exit(first)) == (137, REQUEUE), docker("logs", first)

    before = pods.newest_step()
    first, evicted = pods.start(0, "2", ENDLESS), pods.start(1, "2", ENDLESS)
    wait_until(lambda: pods.newest_step() > before, "newer checkpoint", first, evicted)
    docker("kill", "--signal", "TERM", evicted)
    assert (wait_for_exit(evicted), wait_for_exit(first)) == (REQUEUE, REQUEUE), docker("logs", first)

    steps = pods.newest_step() + 10
    first, second = pods.start(0, "3", steps), pods.start(1, "3", steps)
    assert (wait_for_exit(first), wait_for_exit(second)) == (0, 0), docker("logs", first)
    assert len(pods.read("llama/requeues").splitlines()) == 2

    pods.run_undisturbed(steps, "/runs/undisturbed")
    assert pods.losses("llama") == pods.losses("undisturbed")
    assert pods.checksums("llama", steps) == pods.checksums("undisturbed", steps)
