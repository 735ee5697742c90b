"""Logs that a machine of a rehearsal stored in the bucket, read by `muster logs` after the machine is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bootstrap.steps.cloud.logs import FIRST_STORED_S
from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.targets.aws import names
from infra.targets.aws.node import parameters
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.rehearsal import Rehearsal

SLURMD_TITLE = "==> /var/log/slurm/slurmd.log <=="
_POLL_S = 1.0
# Packing and storing, on a machine with other work.
_STORING_S = 60.0


def wait_for_stored_logs(rehearsal: Rehearsal, machine: Instance) -> None:
    """Wait until the timer of a machine that is ready has stored its logs; raise Stop if that does not happen."""
    limit_s = FIRST_STORED_S + _STORING_S
    deadline = time.monotonic() + limit_s
    while machine.id not in _list_machines(rehearsal, machine.name):
        if time.monotonic() > deadline:
            raise Stop(f"{machine.name} has not stored its logs after {limit_s:.0f} s", code=FAILED)
        time.sleep(_POLL_S)


def check_stored_logs(rehearsal: Rehearsal, machine: Instance) -> None:
    """Raise Stop if `muster logs` does not print what a machine that is gone has logged."""
    text = rehearsal.read_logs(machine.name, machine.id)
    if missing := find_missing(text, [f"muster: {machine.name} is ready", SLURMD_TITLE]):
        raise Stop(f"the stored logs of {machine.name} ({machine.id}) have no line {missing[0]!r}", code=FAILED)
    count = len(text.splitlines())
    rehearsal.console.say(
        f"`muster logs` printed {format_count(count, 'line')} of {machine.name} ({machine.id}), which is gone"
    )


def find_missing(text: str, lines: Sequence[str]) -> list[str]:
    """Return the lines that a text does not have."""
    return [line for line in lines if line not in text.splitlines()]


def _list_machines(rehearsal: Rehearsal, node: str) -> set[str]:
    spec, cloud = rehearsal.rehearsed.spec, rehearsal.cloud
    bucket = names.bucket(spec.name, cloud.account, cloud.moto_account.region)
    answer = cloud.client("s3").list_objects_v2(Bucket=bucket, Prefix=parameters.logs(node))
    return {parameters.read_machine(node, entry["Key"]) for entry in answer.get("Contents", [])}
