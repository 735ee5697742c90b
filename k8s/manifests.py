"""The Kubernetes objects of a training job, as `kubectl apply -f -` reads them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from k8s.job import JOBSET, RUNS_MOUNT, TMP_MOUNT, TrainingJob
from k8s.names import (
    CONTAINER,
    REPLICATED_JOB,
    STORAGE,
    TENSORBOARD,
    TRAINER,
    make_labels,
    name_tensorboard,
)
from k8s.pod import (
    RENDEZVOUS_PORT,
    SETTINGS_FILE,
    Manifest,
    build_container_security,
    build_pod_security,
    build_pod_template,
)

PERMANENT_EXIT_CODES = (1, 2, 77)
"""Exit codes of trainer.pod after which the job must not start again: broken, invalid input, stopped by a person."""
TENSORBOARD_PORT = 6006
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def render(job: TrainingJob) -> list[Manifest]:
    """Return the objects of a job, in the order in which they are created."""
    return [
        *([_build_claim(job)] if not job.claim else []),
        *([_build_settings(job)] if job.settings else []),
        _build_trainer_policy(job),
        *([_build_job_set(job)] if job.form == JOBSET else [_build_service(job), _build_indexed_job(job)]),
        *(_build_tensorboard(job) if job.tensorboard_image else []),
    ]


def dump_manifests(manifests: Sequence[Manifest]) -> str:
    """Return objects as YAML documents."""
    return yaml.dump_all(manifests, Dumper=_PlainDumper, sort_keys=False, explicit_start=True, width=120)


class _PlainDumper(yaml.SafeDumper):
    """A dumper without anchors: people read and edit manifests."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature of PyYAML
        return True


def _build_metadata(job: TrainingJob, name: str, component: str) -> Manifest:
    namespace = {"namespace": job.namespace} if job.namespace else {}
    return {"name": name, **namespace, "labels": make_labels(job.name, component)}


def _build_claim(job: TrainingJob) -> Manifest:
    storage_class = {"storageClassName": job.storage_class} if job.storage_class else {}
    spec = {"accessModes": ["ReadWriteMany"], **storage_class, "resources": {"requests": {"storage": job.storage}}}
    metadata = _build_metadata(job, job.claim_name, STORAGE)
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _build_settings(job: TrainingJob) -> Manifest:
    data = {SETTINGS_FILE.rpartition("/")[2]: job.settings}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _build_metadata(job, job.name, TRAINER), "data": data}


def _build_trainer_policy(job: TrainingJob) -> Manifest:
    """Return the rule that only pods of the job reach its pods: whoever joins torch's rendezvous can run code there."""
    own = {"podSelector": {"matchLabels": make_labels(job.name, TRAINER)}}
    return _build_network_policy(job, job.name, TRAINER, [{"from": [own]}])


def _build_network_policy(job: TrainingJob, name: str, component: str, ingress: list[Manifest]) -> Manifest:
    selector = {"matchLabels": make_labels(job.name, component)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _build_metadata(job, name, component),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _build_job_set(job: TrainingJob) -> Manifest:
    """Return the JobSet: if a pod fails, all pods start again, unless the exit code is permanent."""
    permanent = {"name": "permanent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    metadata = _build_metadata(job, job.name, TRAINER)
    if job.exclusive:
        metadata["annotations"] = {_EXCLUSIVE: job.topology}
    template = {
        "metadata": {"labels": make_labels(job.name, TRAINER)},
        "spec": _build_job_spec(job, backoff_limit=0, rules=[_fail_on_permanent_codes()]),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": job.max_restarts, "rules": [permanent]},
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": template}],
        },
    }


def _build_service(job: TrainingJob) -> Manifest:
    """Return the headless service that gives the pods of an indexed Job their names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _build_metadata(job, job.name, TRAINER),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": make_labels(job.name, TRAINER),
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def _build_indexed_job(job: TrainingJob) -> Manifest:
    """Return the Job for clusters without JobSet: Kubernetes replaces pods one by one, and they join the others.

    Not a StatefulSet: it would start pods again after the run has finished, and could not tell why a pod ended.
    """
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [_fail_on_permanent_codes(), evicted]
    spec = _build_job_spec(job, backoff_limit=job.max_restarts * job.nodes, rules=rules)
    metadata = _build_metadata(job, job.name, TRAINER)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _build_job_spec(job: TrainingJob, *, backoff_limit: int, rules: list[Manifest]) -> Manifest:
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": backoff_limit,
        # A replacement starts after the old pod has ended, so that there is one writer.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        "template": build_pod_template(job),
    }


def _fail_on_permanent_codes() -> Manifest:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(PERMANENT_EXIT_CODES)}
    return {"action": "FailJob", "onExitCodes": codes}


def _build_tensorboard(job: TrainingJob) -> list[Manifest]:
    name, labels = name_tensorboard(job.name), make_labels(job.name, TENSORBOARD)
    folder = f"{job.run_folder}/tensorboard"
    container = {
        "name": TENSORBOARD,
        "image": job.tensorboard_image,
        "command": ["tensorboard", f"--logdir={folder}", "--host=0.0.0.0", f"--port={TENSORBOARD_PORT}"],
        "ports": [{"name": "http", "containerPort": TENSORBOARD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": build_container_security(),
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS_MOUNT, "readOnly": True},
            {"name": "tmp", "mountPath": TMP_MOUNT},
        ],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": build_pod_security(job),
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim_name, "readOnly": True}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if job.pull_secret:
        pod["imagePullSecrets"] = [{"name": job.pull_secret}]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _build_metadata(job, name, TENSORBOARD),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _build_metadata(job, name, TENSORBOARD),
        "spec": {"selector": labels, "ports": [{"name": "http", "port": TENSORBOARD_PORT, "targetPort": "http"}]},
    }
    # It has no password. `kubectl port-forward` connects inside of the pod, where no policy applies.
    policy = _build_network_policy(job, name, TENSORBOARD, ingress=[])
    return [policy, deployment, service]
