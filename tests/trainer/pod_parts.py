"""A pod of a training job on Kubernetes: its part in the job, and the variables of its manifest."""

from __future__ import annotations

from pathlib import Path

from trainer.pod import Node


def make_node(folder: Path, *, index: int = 0, job: str = "job-1", attempt: str = "attempt-1") -> Node:
    return Node(
        index=index,
        nodes=2,
        ranks=1,
        head="127.0.0.1",
        port=29_400,
        address="127.0.0.1",
        job=job,
        attempt=attempt,
        folder=folder,
        join_timeout_s=120,
    )


def make_variables(folder: Path, port: int, index: int, *, nodes: int = 2, attempt: str = "1") -> dict[str, str]:
    """Return the variables of a pod's manifest."""
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "MUSTER_NODES": str(nodes),
        "MUSTER_RANKS": "1",
        "MUSTER_HEAD": "127.0.0.1",
        "MUSTER_PORT": str(port),
        "MUSTER_POD_IP": "127.0.0.1",
        "MUSTER_JOB": "job",
        "MUSTER_ATTEMPT": attempt,
        "MUSTER_RUN_FOLDER": str(folder),
        "MUSTER_JOIN_TIMEOUT_S": "240",
    }
