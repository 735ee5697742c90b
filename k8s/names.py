"""Names and labels of the objects of a training job; no other module defines them."""

from __future__ import annotations

from k8s.job import JOBSET, TrainingJob

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
TRAINER = "trainer"
TENSORBOARD = "tensorboard"
STORAGE = "storage"
CONTAINER = "trainer"
REPLICATED_JOB = "node"


def make_labels(name: str, component: str) -> dict[str, str]:
    """Return the labels of an object, after Kubernetes' recommendation."""
    return {
        "app.kubernetes.io/name": "muster-trainer",
        INSTANCE: name,
        COMPONENT: component,
        "app.kubernetes.io/managed-by": "muster",
    }


def select(name: str, component: str = "") -> str:
    """Return the selector for `kubectl -l` of all objects of a job, or of one of its components."""
    return f"{INSTANCE}={name}" + (f",{COMPONENT}={component}" if component else "")


def name_head(job: TrainingJob) -> str:
    """Return the DNS name of the first pod in the job's namespace."""
    pod = f"{job.name}-{REPLICATED_JOB}-0-0" if job.form == JOBSET else f"{job.name}-0"
    return f"{pod}.{job.name}"


def name_tensorboard(name: str) -> str:
    """Return the name of the TensorBoard deployment and service of a job."""
    return f"{name}-tensorboard"
