"""Hands every compute node its own SSH host key: whoever launches a machine stores it where only that machine reads.

Keys belong to node names, so that a name keeps its key when another machine takes it over. The id of a machine is known
only after its launch; the machine waits for the key during its set-up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from infra.targets.aws.launcher.api import AT_ONCE, AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.node import parameters
from slurm.power.launcher import Fault, LauncherError, Machine


def hand_over(api: AwsApi, fleet: Fleet, machines: Mapping[str, Machine]) -> None:
    """Store the host key of each node for its machine; raise LauncherError if a node has none."""
    if not fleet.bucket or not machines:
        return
    document = api.call("s3", "get_object", Bucket=fleet.bucket, Key=parameters.HOST_KEYS)
    keys: Mapping[str, str] = json.loads(document["Body"].read())
    if missing := sorted(set(machines) - set(keys)):
        fault = Fault("broken", "NoHostKey", f"{parameters.HOST_KEYS} has no host key of {', '.join(missing)}")
        raise LauncherError("hand_over", fault, "run `muster up`")

    def store(name: str) -> None:
        key = parameters.own_host_key(f"{fleet.machine_arns}{machines[name].id}")
        api.call("s3", "put_object", Bucket=fleet.bucket, Key=key, Body=keys[name].encode())

    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Reading the results raises the first error, and cancels the calls that have not begun.
        list(pool.map(store, machines))
