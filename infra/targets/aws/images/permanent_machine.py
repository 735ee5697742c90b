"""The planned end of controller or login, whose next machine starts from another image."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.transport.base import TransportError
from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws import run_command
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import list_instances, translate_errors
from infra.targets.aws.launcher.api import pause
from infra.targets.aws.launcher.instances import ENDING
from infra.targets.target import Deployment

# Queue and accounting are on a disk that outlives the machine: what the daemons have in memory is written there.
_STOP_DAEMONS = "systemctl stop slurmctld slurmdbd mariadb && sync"
_START_DAEMONS = "systemctl start mariadb && systemctl start slurmdbd && systemctl start slurmctld"
_DAEMONS_TIMEOUT_S = 180.0
_END_TIMEOUT_S, _POLL_S = 600.0, 3.0


def end_machine(
    deployment: Deployment, node: str, sleep: Callable[[float], object] = pause, timeout_s: float = _END_TIMEOUT_S
) -> None:
    """Stop the daemons of a permanent node, terminate its machine and wait until it is gone.

    The daemons of a machine that AWS does not terminate run again.
    """
    region = deployment.region
    with translate_errors(f"the machine of {node}", region):
        instances = list_instances(region, deployment.cluster, deployment.stack)
        ids = [instance.id for instance in instances if instance.name == node]
        for id_ in ids:
            if node == names.CONTROLLER:
                _run(region, id_, _STOP_DAEMONS)
            try:
                create_client("ec2", region).terminate_instances(InstanceIds=[id_])
            except (ClientError, BotoCoreError):
                if node == names.CONTROLLER:
                    _run(region, id_, _START_DAEMONS)
                raise
        _wait_for_end(region, ids, node, sleep, timeout_s)


def _run(region: str, instance: str, script: str) -> None:
    # slurmctld also recovers from what it has written so far: a machine that does not answer is replaced all the same.
    with suppress(TransportError):
        run_command.run(region, instance, script, _DAEMONS_TIMEOUT_S)


def _wait_for_end(
    region: str, ids: Sequence[str], node: str, sleep: Callable[[float], object], timeout_s: float
) -> None:
    """Wait until EC2 shows instances as terminated: until then they hold the address of their successor."""
    deadline = time.monotonic() + timeout_s
    filters = [{"Name": "instance-id", "Values": list(ids)}, {"Name": "instance-state-name", "Values": list(ENDING)}]
    ec2 = create_client("ec2", region)
    while ids and ec2.describe_instances(Filters=filters)["Reservations"]:
        if time.monotonic() > deadline:
            what = f"{', '.join(ids)} of {node} did not terminate within {timeout_s / 60:.0f} minutes"
            raise ResourceError("", what, "run `muster up` when EC2 shows it as terminated")
        sleep(_POLL_S)
