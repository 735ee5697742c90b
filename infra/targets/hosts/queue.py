"""The job queue of a cluster of hosts, queried over SSH with the access files of its stack."""

from __future__ import annotations

import os

from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Inventory
from infra.home import Home
from infra.resources.job_queue import (
    QUERY_TIMEOUT_S,
    JobQueue,
    NoQueue,
    SlurmQueue,
    UnknownQueue,
    holds_slurm_cluster,
)
from infra.targets.target import Deployment

_DAEMON = "slurmctld"


def open_queue(deployment: Deployment) -> JobQueue:
    """Return the queue of a cluster: SlurmQueue if it can be queried, otherwise NoQueue or UnknownQueue."""
    stack = Home.of(os.environ).stack(deployment.stack)
    if not holds_slurm_cluster(stack.state):
        return NoQueue()
    try:
        inventory = Inventory.model_validate_json(stack.inventory.read_text())
        private_key = (stack.folder / "id_ed25519").read_text()
    except FileNotFoundError as missing:
        return UnknownQueue(f"{missing.filename} is missing")

    def connect() -> SshTransport:
        return SshTransport.connect(inventory.controller, private_key, deadline_s=QUERY_TIMEOUT_S)

    try:
        transport = connect()
        try:
            runs = transport.run(f"systemctl -q is-active {_DAEMON}", timeout=QUERY_TIMEOUT_S).code == 0
        finally:
            transport.close()
    except TransportError as error:
        return UnknownQueue(error.line)
    return SlurmQueue(connect) if runs else UnknownQueue(f"no {_DAEMON} runs on the controller")
