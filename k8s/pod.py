"""The pod of a training job: container, devices, volumes, security and placement. Pure functions."""

from __future__ import annotations

from typing import Any

from k8s.job import DATA_MOUNT, EFA_RESOURCE, INDEXED_JOB, JOBSET, RUNS_MOUNT, TMP_MOUNT, TrainingJob
from k8s.names import CONTAINER, TRAINER, make_labels, name_head

Manifest = dict[str, Any]

SETTINGS_MOUNT = "/settings"
SETTINGS_FILE = f"{SETTINGS_MOUNT}/run.yaml"
RENDEZVOUS_PORT = 29_400
# As on the nodes of a Slurm cluster (bootstrap/steps/fabric.py): NCCL fails if the fabric does not work, instead of
# using TCP. Without huge pages, the pod need not request any.
EFA_VARIABLES = {"NCCL_NET": "Libfabric", "FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
RDMA_VARIABLES = {"NCCL_NET": "IB"}
TCP_VARIABLES = {"NCCL_NET": "Socket"}
# Kubernetes' default is to wait five minutes before it gives up the pods of a lost node.
LOST_NODE_S = 60
_JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"
_JOBSET_UID = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"


def build_pod_template(job: TrainingJob) -> Manifest:
    """Return the template of the job's pods, which fits the `restricted` Pod Security Standard."""
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": build_pod_security(job),
        "containers": [_build_container(job)],
        "volumes": _build_volumes(job),
        **_build_placement(job),
        "tolerations": _build_tolerations(job),
    }
    if job.form == INDEXED_JOB:
        # The controller of JobSet sets the subdomain of its pods itself.
        spec["subdomain"] = job.name
    if job.node_selector:
        spec["nodeSelector"] = dict(job.node_selector)
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    if job.pull_secret:
        spec["imagePullSecrets"] = [{"name": job.pull_secret}]
    return {"metadata": {"labels": make_labels(job.name, TRAINER)}, "spec": spec}


def build_pod_security(job: TrainingJob) -> Manifest:
    """Return the security context of a pod: an ordinary user, whose group owns the claims."""
    return {
        "runAsNonRoot": True,
        "runAsUser": job.user,
        "runAsGroup": job.user,
        "fsGroup": job.user,
        # Without this, every start changes the owner of every checkpoint file.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def build_container_security() -> Manifest:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _build_container(job: TrainingJob) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "runs", "mountPath": RUNS_MOUNT},
        {"name": "tmp", "mountPath": TMP_MOUNT},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - an empty volume of this pod
    ]
    if job.data_claim:
        mounts.append({"name": "data", "mountPath": DATA_MOUNT, "readOnly": True})
    if job.settings:
        mounts.append({"name": "settings", "mountPath": SETTINGS_MOUNT, "readOnly": True})
    return {
        "name": CONTAINER,
        "image": job.image,
        "command": ["python", "-m", "trainer.pod"],
        # Kubernetes would replace $(NAME) by the value of a variable.
        "args": [argument.replace("$(", "$$(") for argument in job.arguments],
        "env": _build_environment(job),
        "resources": _build_resources(job),
        "ports": [{"name": "rendezvous", "containerPort": RENDEZVOUS_PORT}],
        "securityContext": build_container_security(),
        "volumeMounts": mounts,
    }


def _build_environment(job: TrainingJob) -> list[Manifest]:
    # Kubernetes sets JOB_COMPLETION_INDEX itself. A JobSet creates a new Job when it restarts.
    values = {
        "MUSTER_NODES": str(job.nodes),
        "MUSTER_RANKS": str(job.ranks_per_node),
        "MUSTER_HEAD": name_head(job),
        "MUSTER_PORT": str(RENDEZVOUS_PORT),
        "MUSTER_RUN_FOLDER": job.run_folder,
        "MUSTER_JOIN_TIMEOUT_S": str(job.join_timeout_s),
        # The root filesystem is read-only, and the user may have no entry in /etc/passwd.
        "HOME": TMP_MOUNT,
        "USER": "muster",
        **_choose_fabric_variables(job),
    }
    references = {
        "MUSTER_POD_IP": "status.podIP",
        "MUSTER_JOB": _JOBSET_UID if job.form == JOBSET else _JOB_UID,
        "MUSTER_ATTEMPT": _JOB_UID,
    }
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in references.items()),
    ]


def _choose_fabric_variables(job: TrainingJob) -> dict[str, str]:
    if EFA_RESOURCE in job.rdma:
        return EFA_VARIABLES
    return RDMA_VARIABLES if job.rdma else TCP_VARIABLES


def _build_resources(job: TrainingJob) -> Manifest:
    """Return requests and limits: devices and memory are limited, CPUs are not, so that idle ones can be used."""
    devices = {**({job.gpu_resource: str(job.gpus)} if job.gpus else {}), **_count_devices(job)}
    limits = {**({"memory": job.memory} if job.memory else {}), **devices}
    requests = {**({"cpu": job.cpus} if job.cpus else {}), **limits}
    return {name: values for name, values in (("requests", requests), ("limits", limits)) if values}


def _count_devices(job: TrainingJob) -> dict[str, str]:
    return {resource: str(count) for resource, count in job.rdma.items()}


def _build_volumes(job: TrainingJob) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim_name}},
        {"name": "tmp", "emptyDir": {}},
        # NCCL and data loaders need more than the default of 64 MB; it counts as memory of the pod.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if job.data_claim:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": job.data_claim, "readOnly": True}})
    if job.settings:
        volumes.append({"name": "settings", "configMap": {"name": job.name}})
    return volumes


def _build_placement(job: TrainingJob) -> Manifest:
    """Return one pod per node and, with a topology, all of them in the same domain."""
    own, node = {"matchLabels": make_labels(job.name, TRAINER)}, "kubernetes.io/hostname"
    if job.exclusive:
        # The controller of JobSet adds terms that keep its pods together and those of other JobSets away. When a pod is
        # deleted, the scheduler tries a waiting one again only if the deleted one matches all of its terms against
        # other pods, so that it would wait for minutes beside a term of ours. With as many domains as pods, two pods
        # never fit into one.
        spread = {"maxSkew": 1, "minDomains": job.nodes, "topologyKey": node, "whenUnsatisfiable": "DoNotSchedule"}
        return {"topologySpreadConstraints": [{**spread, "labelSelector": own}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity: Manifest = {"podAntiAffinity": {required: [{"labelSelector": own, "topologyKey": node}]}}
    if job.topology:
        affinity["podAffinity"] = {required: [{"labelSelector": own, "topologyKey": job.topology}]}
    return {"affinity": affinity}


def _build_tolerations(job: TrainingJob) -> list[Manifest]:
    lost = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]
    chosen = []
    if job.gpus:
        # Clusters taint their GPU nodes with the name of the resource, and not all tolerate it automatically.
        chosen.append({"key": job.gpu_resource, "operator": "Exists", "effect": "NoSchedule"})
    for taint in job.tolerations:
        key, equals, value = taint.partition("=")
        chosen.append(
            {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
        )
    return [*({**toleration, "tolerationSeconds": LOST_NODE_S} for toleration in lost), *chosen]
