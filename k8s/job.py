"""A training job on Kubernetes: what it needs of the cluster, and the checks of these values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

JOBSET = "jobset"
INDEXED_JOB = "job"
FORMS = (JOBSET, INDEXED_JOB)
MAX_NAME_CHARACTERS = 40
"""Names of pods are longer by the index and random characters, and Kubernetes allows 63."""
MAX_NODES = 10_000
SAVE_S = 120
"""Seconds that the ranks have to save before the pod ends, as many as train.sbatch asks Slurm for."""
END_S = 30
"""Seconds for torchrun and the pod to end after the save."""
EFA_RESOURCE = "vpc.amazonaws.com/efa"
RUNS_MOUNT = "/runs"
DATA_MOUNT = "/data"
TMP_MOUNT = "/tmp"  # noqa: S108 - an empty volume of each pod, on its node's disk
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_QUANTITY_FIX = "write a Kubernetes quantity, such as 16, 500m or 64Gi"


@dataclass(frozen=True)
class Problem:
    """An invalid value: the option, what is wrong with its value, and the fix."""

    where: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}; {self.fix}"


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training job and the resources of its pods; there is one pod per node."""

    name: str
    image: str
    arguments: tuple[str, ...]
    """The trainer's arguments: a preset or the mounted settings file, and overrides."""
    settings: str = ""
    """Text of the settings file that the pods mount; empty if the job starts from a preset."""
    form: str = JOBSET
    namespace: str = ""
    nodes: int = 2
    gpus: int = 0
    """GPUs per node."""
    gpu_resource: str = "nvidia.com/gpu"
    ranks: int = 0
    """Ranks per node; 0 means one for each GPU."""
    cpus: str = ""
    memory: str = ""
    rdma: Mapping[str, int] = field(default_factory=dict)
    """RDMA devices per node, by the name of the resource."""
    claim: str = ""
    """Existing claim for runs; empty creates one with `storage` and `storage_class`."""
    storage: str = ""
    storage_class: str = ""
    data_claim: str = ""
    topology: str = ""
    """Label of nodes; all pods run on nodes with the same value of it."""
    exclusive: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    """Taints to tolerate: KEY or KEY=VALUE."""
    priority_class: str = ""
    pull_secret: str = ""
    tensorboard_image: str = ""
    user: int = 10_001
    grace_s: int = SAVE_S + END_S
    max_restarts: int = 100
    join_timeout_s: int = 900

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks in each pod."""
        return self.ranks or self.gpus or 1

    @property
    def claim_name(self) -> str:
        """Name of the claim for runs."""
        return self.claim or f"{self.name}-runs"

    @property
    def run_folder(self) -> str:
        """Folder of the run in the pods."""
        return f"{RUNS_MOUNT}/{self.name}"


def check_job(job: TrainingJob) -> list[Problem]:
    """Return all problems of a job, so that the user can fix them at once."""
    return [*_check_names(job), *_check_numbers(job), *_check_storage(job), *_check_placement(job)]


def _check_names(job: TrainingJob) -> Iterator[Problem]:
    if not _NAME.fullmatch(job.name) or len(job.name) > MAX_NAME_CHARACTERS:
        fix = f"use at most {MAX_NAME_CHARACTERS} of a-z, 0-9 and '-', with a letter first and no '-' at the end"
        yield Problem("--name", f"{job.name!r} cannot name the pods", fix)
    if job.form not in FORMS:
        yield Problem("--form", f"{job.form!r} is not a form", f"use one of: {', '.join(FORMS)}")
    if not job.image or re.search(r"\s", job.image):
        fix = "build trainer/Dockerfile, push the image, and name it, such as registry.example.org/trainer:1"
        yield Problem("--image", f"{job.image!r} is not an image", fix)
    if re.search(r"\s", job.tensorboard_image):
        yield Problem("--tensorboard-image", f"{job.tensorboard_image!r} is not an image", "remove the spaces")
    named = {
        "--namespace": job.namespace,
        "--claim": job.claim,
        "--storage-class": job.storage_class,
        "--data-claim": job.data_claim,
        "--priority-class": job.priority_class,
        "--pull-secret": job.pull_secret,
    }
    for option, value in named.items():
        if value and not _DNS_NAME.fullmatch(value):
            yield Problem(option, f"{value!r} is not a name", "use a-z, 0-9, '-' and '.', as `kubectl get` prints it")


def _check_numbers(job: TrainingJob) -> Iterator[Problem]:
    bounds = {
        "--nodes": (job.nodes, 1, MAX_NODES),
        "--gpus": (job.gpus, 0, 64),
        "--ranks": (job.ranks, 0, 1024),
        # 0 is root, which the pods refuse to run as.
        "--user": (job.user, 1, 2**31 - 1),
        "--grace-s": (job.grace_s, END_S + 1, 7200),
        "--max-restarts": (job.max_restarts, 0, 10_000),
        "--join-timeout-s": (job.join_timeout_s, 30, 86_400),
    }
    for option, (value, low, high) in bounds.items():
        if not low <= value <= high:
            yield Problem(option, f"{value} is not allowed", f"use {low} to {high}")
    if job.gpus and job.ranks and job.ranks != job.gpus:
        yield Problem("--ranks", f"{job.ranks} ranks cannot share {job.gpus} GPUs", "leave out --ranks")
    for option, quantity in (("--cpus", job.cpus), ("--memory", job.memory)):
        if quantity and not _QUANTITY.fullmatch(quantity):
            yield Problem(option, f"{quantity!r} is not a quantity", _QUANTITY_FIX)
    for resource in (job.gpu_resource, *job.rdma):
        if "/" not in resource or not _LABEL_KEY.fullmatch(resource):
            option = "--gpu-resource" if resource == job.gpu_resource else "--rdma"
            fix = "use a name that `kubectl describe node` lists under Capacity, such as rdma/hca or nvidia.com/gpu"
            yield Problem(option, f"{resource!r} is not the resource of a device plugin", fix)
    for resource, count in job.rdma.items():
        if count < 1:
            yield Problem("--rdma", f"{resource}={count} requests nothing", "request at least 1, or leave it out")
    if job.rdma and not job.gpus:
        yield Problem("--rdma", "has no effect without GPUs: ranks on CPUs use TCP", "request --gpus, or leave it out")
    if EFA_RESOURCE in job.rdma and len(job.rdma) > 1:
        fix = f"use only {EFA_RESOURCE}, or leave it out"
        yield Problem("--rdma", f"NCCL uses one fabric, but {', '.join(job.rdma)} are of different ones", fix)


def _check_storage(job: TrainingJob) -> Iterator[Problem]:
    if job.claim and (job.storage or job.storage_class):
        option = "--storage" if job.storage else "--storage-class"
        yield Problem(option, f"has no effect on the existing claim {job.claim!r}", f"leave out {option} or --claim")
    if not job.claim and not job.storage:
        fix = "name a ReadWriteMany claim with --claim, or create one with --storage 1Ti [--storage-class NAME]"
        yield Problem("--claim", "checkpoints need storage that all pods share", fix)
    if job.storage and not _QUANTITY.fullmatch(job.storage):
        yield Problem("--storage", f"{job.storage!r} is not a quantity", _QUANTITY_FIX)


def _check_placement(job: TrainingJob) -> Iterator[Problem]:
    if job.topology and not _LABEL_KEY.fullmatch(job.topology):
        yield Problem("--topology", f"{job.topology!r} is not a label", "use one of `kubectl get nodes --show-labels`")
    if job.exclusive and not job.topology:
        fix = "name the label of the domain with --topology, such as topology.kubernetes.io/zone"
        yield Problem("--exclusive", "needs the domain that no other JobSet may use", fix)
    if job.exclusive and job.form != JOBSET:
        yield Problem("--exclusive", f"is not available with --form {job.form}", f"use --form {JOBSET}")
    for key, value in job.node_selector.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield Problem("--node-selector", f"'{key}={value}' is not a label", "write LABEL=VALUE")
    for taint in job.tolerations:
        key, _, value = taint.partition("=")
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield Problem("--toleration", f"{taint!r} is not a taint", "write KEY or KEY=VALUE")
