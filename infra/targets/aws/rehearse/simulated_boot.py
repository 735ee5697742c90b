"""Instances in moto do not boot: this module answers for their user data, Slurm on the controller, and sent files."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import InstanceBackend
from moto.s3.models import s3_backends
from moto.ssm.models import Command, ssm_backends

from infra.targets.aws.launcher.node_names import read_node_name
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from slurm.control.nodes import parse_queried_nodes
from slurm.gate_verdict import PREFIX
from slurm.hostlist import expand

_AT = "2026-11-15T12:00:00+00:00"


@contextmanager
def simulate_boot() -> Iterator[None]:
    """Make instances report as soon as they start, and again when a command sets them up again."""
    run_instances, invocation = InstanceBackend.run_instances, Command.invocation_response

    def run_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        reservation = run_instances(self, *args, **kwargs)
        for instance in reservation.instances:
            _report(instance, _text(instance.user_data))
        return reservation

    def respond(self: Any, instance_id: str, plugin_name: str) -> dict[str, Any]:
        script = self.parameters["commands"][0]
        if "digest=" in script:
            _report(ec2_backends[self.account_id][self.backend_region].get_instance(instance_id), script)
        if transfer := re.search(r"(\S+) (transfer-[0-9a-f]+) store ", script):
            s3_backends[self.account_id]["aws"].put_object(transfer[1], parameters.packages(transfer[2]), b"a file")
        response = invocation(self, instance_id, plugin_name)
        return {**response, "StandardOutputContent": response["StandardOutputContent"] or _slurm(script)}

    InstanceBackend.run_instances, Command.invocation_response = run_and_report, respond
    try:
        yield
    finally:
        InstanceBackend.run_instances = run_instances
        Command.invocation_response = invocation


def _report(instance: Any, script: str) -> None:
    """Write the report that infra.targets.aws.node writes at the end of setup.

    It goes to moto's backend directly, because a machine's own calls must not be counted with the engine's.
    """
    tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
    # A machine that builds an image is no node, and has its name in the script.
    named = re.search(r"^name=([\w-]+)$", script, re.MULTILINE)
    name = read_node_name(tags, instance.ami_launch_index) or (named[1] if named else "")
    cluster, digest = _setting("cluster", script), _setting("digest", script)
    if named and name.startswith(parameters.BUILDER):
        _store_packages(instance, name, _setting("bucket", script))
    report = Report(instance=instance.id, state="ready", step="report", at=_AT, bundle=digest)
    backend = ssm_backends[instance.ec2_backend.account_id][instance.ec2_backend.region_name]
    backend.put_parameter(
        name=parameters.node(cluster, name or instance.id),
        description="",
        value=report.model_dump_json(),
        parameter_type="String",
        allowed_pattern="",
        keyid="",
        overwrite=True,
        tags=[],
        data_type="text",
        tier=None,
        policies=None,
    )


def _store_packages(instance: Any, name: str, bucket: str) -> None:
    """Store what a machine that builds an image stores before it reports."""
    account, region = instance.ec2_backend.account_id, instance.ec2_backend.region_name
    key = parameters.stored(name, f"arn:aws:ec2:{region}:{account}:instance/{instance.id}", parameters.PACKAGE_LIST)
    s3_backends[account]["aws"].put_object(bucket, key, gzip.compress(json.dumps({"slurm-smd": "1"}).encode()))


def _setting(name: str, script: str) -> str:
    match = re.search(rf"^{name}=(\S+)$", script, re.MULTILINE)
    if match is None:
        raise ValueError(f"user data does not set {name}")
    return match[1]


def _text(user_data: Any) -> str:
    return b64decode(str(user_data)).decode()


def _slurm(script: str) -> str:
    """Return Slurm's output for a script: idle nodes, and a test job that passes on them."""
    if queried := parse_queried_nodes(script):
        return "\n".join(
            f"NodeName={name} State=IDLE+CLOUD CPUTot=8 CPUAlloc=0 RealMemory=64000 AllocMem=0 FreeMem=60000"
            for name in queried
        )
    if job := re.search(r"--nodelist=([^\s']+)", script):
        nodes = expand(job[1])
        expected_sum = len(nodes) * (len(nodes) + 1) / 2
        ranks = [
            {"host": name, "rank": rank, "stage": "passed", "sum": expected_sum} for rank, name in enumerate(nodes)
        ]
        return "\n".join(PREFIX + json.dumps(rank) for rank in ranks)
    return ""
