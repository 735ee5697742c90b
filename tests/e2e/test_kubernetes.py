"""Training jobs on a real Kubernetes cluster: lost pods and nodes, drains, and people's own commands.

In both forms: as a JobSet with its real controller, and as an indexed Job.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.job import FORMS, INDEXED_JOB, JOBSET
from k8s.manifests import TENSORBOARD_PORT
from k8s.names import TENSORBOARD, TRAINER, name_tensorboard, select
from setup import pins
from setup.paths import Paths
from tests.e2e.kubernetes.images import TRAINER_IMAGE, build_trainer, find_environment
from tests.e2e.kubernetes.requirements import find_lacking
from tests.e2e.kubernetes.training import (
    ENDLESS,
    NAMESPACE,
    SETTINGS,
    TIMEOUT_S,
    Training,
    running_training,
)
from tests.e2e.trainer_image import require_trainer_image
from tests.e2e.training import TRAIN, Job, completed
from tests.harness import Spec, Stack, small_spec, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

COMPARED_STEPS = 200
"""Enough that a pod can be killed after the first checkpoint and before the end."""
SCHEDULER_FLUSH_S = 300
"""After this time Kubernetes' scheduler looks at every waiting pod again, whatever has happened."""
COMPLETE = {JOBSET: "Completed", INDEXED_JOB: "Complete"}
"""The condition of a job that has finished, by its form."""
# The file that asks for a save and the signal race.
PREEMPTIONS = ("preempted", "warned by a signal")


@pytest.fixture(scope="module")
def programs() -> None:
    """Skip the test if this machine cannot run a cluster."""
    if lacking := find_lacking(Paths.from_environment()):
        pytest.skip(f"{', '.join(lacking)} missing: run `python3 -m setup kubernetes` as root")


@pytest.fixture(scope="module")
def training(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    build_trainer()
    folder = tmp_path_factory.mktemp("kubernetes")
    with running_training(folder, TRAINER_IMAGE, [find_environment()], count=3) as training:
        yield training


@pytest.fixture(scope="module")
def slurm(programs: None, make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    """Return a Slurm cluster of two nodes."""
    stack = make_stack("kubernetes", small_spec())
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.mark.parametrize("form", FORMS)
def test_a_run_survives_lost_pods_and_nodes_bit_for_bit(training: Training, form: str) -> None:
    cluster, name = training.cluster, f"llama-{form}"
    training.apply(name, form, ENDLESS, "--tensorboard-image", TRAINER_IMAGE)
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
    *lost, drained = training.read_restarts(name)
    assert drained.startswith(PREEMPTIONS), drained
    if form == JOBSET:
        killed, _ = lost
        assert "-node-0-1: lost peer" in killed, killed
    else:
        # Pods that are replaced join the others; only those of the drained node made all of them start again.
        assert lost == []

    training.apply(name, form, steps + 10)
    assert training.wait_for_end(name, form) == COMPLETE[form]
    assert "Complete" in training.muster("status", name)
    undisturbed = f"undisturbed-{form}"
    training.train_undisturbed(undisturbed, steps + 10)
    assert training.read_losses(name) == training.read_losses(undisturbed)
    assert training.read_checksums(name, steps + 10) == training.read_checksums(undisturbed, steps + 10)
    training.muster("delete", name)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_loses_a_pod_ends_as_the_same_job_under_slurm(training: Training, slurm: Stack, form: str) -> None:
    name = f"compared-{form}"
    training.apply(name, form, COMPARED_STEPS)
    training.wait_for_newer_checkpoint(name)
    before = training.wait_for_pods(name)
    container = before[1]["status"]["containerStatuses"][0]["containerID"]
    training.cluster.nodes[before[1]["spec"]["nodeName"]].kill_container(container)
    assert training.wait_for_end(name, form) == COMPLETE[form]
    assert training.count_starts(name) > 1

    job = completed(submit_to_slurm(slurm, name))
    assert training.read_losses(name) == job.losses()
    assert training.read_checksums(name, COMPARED_STEPS) == job.shards(COMPARED_STEPS)
    training.muster("delete", name)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_stopped_by_hand(training: Training, form: str) -> None:
    name = f"stopped-{form}"
    training.apply(name, form, ENDLESS)
    training.wait_for_newer_checkpoint(name)
    pod = training.wait_for_pods(name)[0]["metadata"]["name"]
    training.kubectl("exec", pod, "--", "touch", f"/runs/{name}/stop")
    assert training.wait_for_end(name, form) == "Failed"
    outcome = json.loads((training.claim / name / "outcome.json").read_text())
    assert outcome["outcome"] == "stopped"
    training.muster("delete", name)


def test_an_exclusive_job_set_has_a_domain_of_its_own(training: Training) -> None:
    # JobSet places the first pod wherever it fits, also in a rack that has too few nodes for the others.
    rack = {"n1", "n2"}
    for node in rack:
        training.cluster.kubectl("label", "node", node, "rack=a")
    options = ("--topology", "rack", "--exclusive")
    training.apply("exclusive", JOBSET, ENDLESS, *options)
    assert {pod["spec"]["nodeName"] for pod in training.wait_for_pods("exclusive")} == rack

    training.apply("next", JOBSET, ENDLESS, *options)
    wait_until(lambda: "Unschedulable" in training.list_conditions("next"), "a pod without a node", TIMEOUT_S)
    training.muster("delete", "exclusive")
    began = time.monotonic()
    pods = training.wait_for_pods("next")
    assert time.monotonic() - began < SCHEDULER_FLUSH_S / 2
    assert {pod["spec"]["nodeName"] for pod in pods} == rack
    training.muster("delete", "next")


@pytest.mark.parametrize("form", FORMS)
def test_every_object_is_accepted_by_the_api_server(training: Training, form: str) -> None:
    options = ("--form", form, "--storage", "1Gi", "--gpus", "8", "--tensorboard-image", TRAINER_IMAGE)
    devices = ("--rdma", "rdma/hca=8", "--data-claim", "tokens", "--topology", "topology.kubernetes.io/zone")
    manifests = training.muster("render", "tiny-llama", "batch.size=16", "--image", "a", *options, *devices)
    # The webhooks of JobSet check the object, too.
    answer = training.cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", data=manifests
    )
    assert answer.count("serverside-applied (server dry run)") == manifests.count("\nkind: "), answer


def test_the_trainers_own_image_trains_in_pods(programs: None, tmp_path: Path) -> None:
    require_trainer_image()
    with running_training(tmp_path, pins.TRAINER_IMAGE, [], count=2) as training:
        training.apply("own", JOBSET, COMPARED_STEPS)
        assert training.wait_for_end("own", JOBSET) == COMPLETE[JOBSET]
        training.train_undisturbed("undisturbed", COMPARED_STEPS)
        assert training.read_losses("own") == training.read_losses("undisturbed")
        assert training.read_checksums("own", COMPARED_STEPS) == training.read_checksums("undisturbed", COMPARED_STEPS)


def submit_to_slurm(slurm: Stack, name: str) -> Job:
    """Submit a job with the settings of those on Kubernetes, and a rank on each of its two nodes, too."""
    folder = f"/shared/home/muster/runs/{name}"
    arguments = " ".join([*SETTINGS, f"steps={COMPARED_STEPS}"])
    command = f"cd ~ && RANKS_PER_NODE=1 RUN_FOLDER={folder} sbatch --parsable {TRAIN} {arguments}"
    return Job(slurm, slurm.ssh(slurm.entry, command), folder)


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
