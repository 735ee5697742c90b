"""The job queue of a local cluster, queried over SSH with the access files of its stack."""

from __future__ import annotations

import os
from http import HTTPStatus

import docker
from docker.errors import APIError, NotFound

from bootstrap.transport.ssh import SshTransport
from cluster import names
from cluster.inventory import Inventory
from infra.home import Home, StackHome
from infra.resources.job_queue import (
    QUERY_TIMEOUT_S,
    JobQueue,
    NoQueue,
    QueueSigns,
    SlurmQueue,
    UnknownQueue,
    holds_slurm_cluster,
    judge_queue,
)
from infra.targets.local import docker_engine as engine_client
from infra.targets.target import Deployment

_DAEMON = "slurmctld"


def queue(deployment: Deployment) -> JobQueue:
    """Return the queue of a cluster: SlurmQueue if it can be queried, otherwise NoQueue or UnknownQueue."""
    home = Home.of(os.environ).with_file_state().stack(deployment.stack)
    answer = judge_queue(_look(deployment.cluster, home))
    if answer == "idle":
        return NoQueue()
    if answer == "unknown":
        return UnknownQueue(f"no {_DAEMON} runs on the controller")
    try:
        inventory = Inventory.model_validate_json(home.inventory.read_text())
        private_key = (home.folder / "id_ed25519").read_text()
    except FileNotFoundError as missing:
        return UnknownQueue(f"{missing.filename} is missing")
    return SlurmQueue(lambda: SshTransport.connect(inventory.controller, private_key, deadline_s=QUERY_TIMEOUT_S))


def _look(cluster: str, home: StackHome) -> QueueSigns:
    with engine_client.api_session("controller") as api:
        processes = _processes(api, names.container(cluster, names.CONTROLLER))
        filters = {"label": [f"{names.CLUSTER}={cluster}", f"{names.STACK}={home.name}", f"{names.ROLE}=compute"]}
        return QueueSigns(
            controller=processes is not None,
            daemon=any(_DAEMON in field for process in processes or [] for field in process),
            compute=bool(api.containers(filters=filters)),
            bootstrapped=holds_slurm_cluster(home.state),
        )


def _processes(api: docker.APIClient, container: str) -> list[list[str]] | None:
    """Return the processes of a container: None if it does not exist, none if it is stopped."""
    try:
        processes: list[list[str]] = api.top(container)["Processes"]
    except NotFound:
        return None
    except APIError as refused:
        if refused.status_code != HTTPStatus.CONFLICT:
            raise
        return []
    return processes
