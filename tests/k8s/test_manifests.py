"""The manifests of training jobs: golden copies, the published schemas, and what pods must not be allowed to do.

`python -m tests.k8s.test_manifests` rewrites the golden copies; review their diff.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.steps import fabric
from k8s.job import INDEXED_JOB, JOBSET, TrainingJob
from k8s.manifests import PERMANENT_EXIT_CODES, dump_manifests, render
from k8s.names import make_labels, select
from k8s.pod import EFA_VARIABLES, TCP_VARIABLES
from tests.k8s.schema import check_manifest
from trainer.life.outcome import Code

GOLDEN = Path(__file__).parents[1] / "golden" / "k8s"
SMALL = TrainingJob(name="small", image="registry.example.org/trainer:1", arguments=("tiny-llama",), claim="runs")
JOBS = {
    "jobset": TrainingJob(
        name="llama",
        image="registry.example.org/trainer:1",
        arguments=("/settings/run.yaml", "steps=1000"),
        settings="name: llama\nsteps: 100\n",
        namespace="research",
        nodes=4,
        gpus=8,
        cpus="90",
        memory="1500Gi",
        rdma={"vpc.amazonaws.com/efa": 32},
        storage="2Ti",
        storage_class="efs",
        data_claim="tokens",
        topology="topology.k8s.aws/network-node-layer-2",
        exclusive=True,
        node_selector={"node.kubernetes.io/instance-type": "p5.48xlarge"},
        tolerations=("dedicated=training", "spot"),
        priority_class="high",
        pull_secret="registry",
        tensorboard_image="registry.example.org/tensorboard:1",
    ),
    "job": TrainingJob(
        name="small",
        image="registry.example.org/trainer:1",
        arguments=("tiny-llama", "steps=20"),
        form=INDEXED_JOB,
        ranks=2,
        claim="runs",
        topology="topology.kubernetes.io/zone",
    ),
    "rdma": TrainingJob(
        name="rdma",
        image="registry.example.org/trainer:1",
        arguments=("llama-1b",),
        gpus=8,
        rdma={"rdma/hca_shared_devices_a": 1},
        claim="runs",
    ),
}


def find_pod(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the pod of the trainer."""
    (holder,) = [manifest for manifest in manifests if manifest["kind"] in ("JobSet", "Job")]
    if holder["kind"] == "JobSet":
        holder = holder["spec"]["replicatedJobs"][0]["template"]
    pod: dict[str, Any] = holder["spec"]["template"]["spec"]
    return pod


def list_pods(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods of the trainer and of TensorBoard."""
    return [
        find_pod(manifests),
        *(manifest["spec"]["template"]["spec"] for manifest in manifests if manifest["kind"] == "Deployment"),
    ]


def read_variables(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"] if "value" in entry}


@pytest.mark.parametrize("name", JOBS)
def test_golden_copies(name: str) -> None:
    assert dump_manifests(render(JOBS[name])) == (GOLDEN / f"{name}.yaml").read_text(), (
        "run `python -m tests.k8s.test_manifests` and review the difference"
    )


@pytest.mark.parametrize("name", JOBS)
def test_manifests_fit_the_published_schemas(name: str) -> None:
    manifests = list(yaml.safe_load_all(dump_manifests(render(JOBS[name]))))
    assert manifests == render(JOBS[name])
    assert [problem for manifest in manifests for problem in check_manifest(manifest)] == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("spec", "restarts"), 3, "JobSet.spec.restarts: is unknown"),
        (("spec", "failurePolicy", "maxRestarts"), "3", "JobSet.spec.failurePolicy.maxRestarts: '3' is not of type"),
        (("spec", "failurePolicy", "rules", 0, "action"), "Stop", "rules[0].action: 'Stop' is not one of"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template"), {"spec": {}}, "containers: is required"),
    ],
)
def test_wrong_manifests_do_not_fit(path: tuple[str | int, ...], value: object, problem: str) -> None:
    """Otherwise the schemas would prove nothing."""
    (manifest,) = [deepcopy(manifest) for manifest in render(SMALL) if manifest["kind"] == "JobSet"]
    *parents, last = path
    place: Any = manifest
    for key in parents:
        place = place[key]
    place[last] = value
    (reported,) = check_manifest(manifest)
    assert problem in reported


@pytest.mark.parametrize("name", JOBS)
def test_pods_fit_the_restricted_pod_security_standard(name: str) -> None:
    for pod in list_pods(render(JOBS[name])):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
            *("persistentVolumeClaim", "emptyDir", "configMap")
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_exit_codes_are_those_of_the_trainer() -> None:
    assert set(PERMANENT_EXIT_CODES) == {Code.BROKEN, Code.BAD_INPUT, Code.STOPPED}


def test_a_jobset_starts_all_pods_again_and_a_job_replaces_them() -> None:
    (job_set,) = [manifest for manifest in render(SMALL) if manifest["kind"] == "JobSet"]
    (job,) = [manifest for manifest in render(JOBS["job"]) if manifest["kind"] == "Job"]
    child = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (child["backoffLimit"], job_set["spec"]["failurePolicy"]["maxRestarts"]) == (0, 100)
    assert job["spec"]["backoffLimit"] == 200
    assert [rule["action"] for rule in child["podFailurePolicy"]["rules"]] == ["FailJob"]
    assert [rule["action"] for rule in job["spec"]["podFailurePolicy"]["rules"]] == ["FailJob", "Ignore"]


@pytest.mark.parametrize(("form", "head"), [(JOBSET, "small-node-0-0.small"), (INDEXED_JOB, "small-0.small")])
def test_pods_meet_at_the_first_one(form: str, head: str) -> None:
    job = TrainingJob(name="small", image="image", arguments=("tiny-llama",), claim="runs", form=form)
    assert read_variables(find_pod(render(job)))["MUSTER_HEAD"] == head


def test_fabric_variables_are_those_of_slurm_nodes() -> None:
    assert (fabric.ENVIRONMENT["efa"], fabric.ENVIRONMENT["tcp"]) == (EFA_VARIABLES, TCP_VARIABLES)
    assert read_variables(find_pod(render(JOBS["jobset"])))["NCCL_NET"] == "Libfabric"
    assert read_variables(find_pod(render(JOBS["rdma"])))["NCCL_NET"] == "IB"
    assert read_variables(find_pod(render(JOBS["job"])))["NCCL_NET"] == "Socket"


def test_pods_of_a_job_are_on_different_nodes() -> None:
    own = {"matchLabels": make_labels("llama", "trainer")}
    exclusive = find_pod(render(JOBS["jobset"]))
    (spread,) = exclusive["topologySpreadConstraints"]
    assert spread == {
        "labelSelector": own,
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "minDomains": 4,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    # A second term beside that of JobSet's controller would let the scheduler ignore that a domain becomes free.
    assert "affinity" not in exclusive
    others = find_pod(render(JOBS["job"]))
    (term,) = others["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert "topologySpreadConstraints" not in others


def test_only_the_jobs_own_pods_reach_its_pods() -> None:
    manifests = render(JOBS["jobset"])
    policies = [manifest["spec"] for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    by_labels = {yaml.dump(policy["podSelector"]["matchLabels"]): policy["ingress"] for policy in policies}
    trainer, tensorboard = (yaml.dump(make_labels("llama", component)) for component in ("trainer", "tensorboard"))
    assert by_labels == {
        trainer: [{"from": [{"podSelector": {"matchLabels": make_labels("llama", "trainer")}}]}],
        tensorboard: [],
    }
    assert {tuple(policy["policyTypes"]) for policy in policies} == {("Ingress",)}


def test_dollars_in_settings_are_not_expanded() -> None:
    job = TrainingJob(name="a", image="image", arguments=("tiny-llama", "data.path=/runs/$(HOME)"), claim="runs")
    assert find_pod(render(job))["containers"][0]["args"] == ["tiny-llama", "data.path=/runs/$$(HOME)"]


def test_every_object_has_the_labels_of_the_job() -> None:
    for job in JOBS.values():
        for manifest in render(job):
            key, _, value = select(job.name).partition("=")
            assert manifest["metadata"]["labels"][key] == value


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for job_name, training_job in JOBS.items():
        (GOLDEN / f"{job_name}.yaml").write_text(dump_manifests(render(training_job)))
