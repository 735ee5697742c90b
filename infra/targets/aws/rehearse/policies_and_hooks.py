"""Scenario of a rehearsal in which the spec has `aws.hooks`, and `aws.policies` for a role of jobs.

The programs and the object that jobs may read are in a bucket of the user, which `teardown` must not touch.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from hashlib import sha256

from bootstrap.bundle import INSTALLED_PYTHON
from cluster.names import CONTROLLER, members
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.build.inventory import METADATA_ADDRESSES
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.machine import TRUSTED
from infra.targets.aws.rehearse.rehearsal import Rehearsal, choose_group

RECORD = "/var/lib/rehearsed-hooks"
TEXT = "an object of the user"
_KEY, _OTHER_KEY = "data.txt", "secret.txt"
_POLICY = "rehearsal-read-data"
# Says when it ran, as which node, with which arguments, and whether jobs could already run there.
_HOOK = f"""#!/bin/sh
set -eu
echo "$1 $MUSTER_NODE $(systemctl is-active slurmd || true)" >>{RECORD}
"""
# Reads the object that the role of jobs permits, one that it does not, and the metadata service, which only root may.
_PROGRAM = f"""
import sys, urllib.request
request = urllib.request.Request(
    "http://{METADATA_ADDRESSES[0]}/latest/api/token",
    method="PUT", headers={{"X-aws-ec2-metadata-token-ttl-seconds": "60"}},
)
try:
    urllib.request.urlopen(request, timeout=5)
    print("metadata: open")
except OSError:
    print("metadata: closed")
if len(sys.argv) > 1:
    import boto3, botocore.exceptions
    s3 = boto3.client("s3")
    for key in sys.argv[2:]:
        try:
            print(f"{{key}}:", s3.get_object(Bucket=sys.argv[1], Key=key)["Body"].read().decode())
        except botocore.exceptions.ClientError as error:
            print(f"{{key}}:", error.response["Error"]["Code"])
"""
EXPECTED = {"metadata: closed", f"{_KEY}: {TEXT}", f"{_OTHER_KEY}: AccessDenied"}
"""What the program must print as a user's job."""


def use_policies_and_hooks(rehearsal: Rehearsal) -> None:
    """Run `up` with hooks and a role of jobs, and a job that reads an object with the credentials of that role."""
    before = rehearsal.list_resources()
    bucket = f"rehearsal-{rehearsal.cloud.account}"
    _create_objects(rehearsal, bucket)
    rehearsal.own |= rehearsal.list_resources() - before
    rehearsal.rehearsed.change_section("aws", **describe_additions(rehearsal.cloud.account, bucket))
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    # AWS's library brings its own certificate authorities; those of a rehearsal are in the machine's list.
    command = ["env", f"AWS_CA_BUNDLE={TRUSTED}", INSTALLED_PYTHON, "-c", _PROGRAM, bucket, _KEY, _OTHER_KEY]
    output = rehearsal.slurm.wait_for_end(rehearsal.slurm.submit(group, nodes, shlex.join(command)))
    if (lines := set(output.splitlines())) != EXPECTED:
        raise Stop(f"the job should have printed {sorted(EXPECTED)}, but printed {sorted(lines)}", code=FAILED)
    rehearsal.console.say("the job read its object with the role of jobs, and nothing else")
    for name in (CONTROLLER, *members(group, nodes)):
        _check_machine(rehearsal, name)
    rehearsal.console.say("all hooks ran before the nodes could run jobs")


def describe_additions(account: str, bucket: str) -> dict[str, object]:
    """Return the fields of the section `aws`: two programs in the bucket, and a policy of the role of jobs."""
    common = {"script": f"s3://{bucket}/hook.sh", "sha256": sha256(_HOOK.encode()).hexdigest()}
    return {
        "policies": {"jobs": [f"arn:aws:iam::{account}:policy/{_POLICY}"]},
        "hooks": {
            "first": {**common, "when": "start", "args": ["start"]},
            "last": {**common, "when": "configured", "args": ["configured"], "roles": ["compute"]},
        },
    }


def list_wrong_hooks(name: str, record: str) -> list[str]:
    """Return the lines of a machine's record of hooks that differ from the expected ones."""
    expected = [f"start {name} inactive", *([] if name == CONTROLLER else [f"configured {name} inactive"])]
    lines = record.splitlines()
    return sorted({*lines} ^ {*expected}) or ([] if len(lines) == len(expected) else lines)


def _check_machine(rehearsal: Rehearsal, name: str) -> None:
    """Raise Stop unless each hook ran once and in time, and root reaches the metadata service."""
    container = rehearsal.cloud.instances.container(rehearsal.cloud.instances.require(name).id)
    if wrong := list_wrong_hooks(name, run_in(container, f"cat {RECORD}")):
        raise Stop(f"{name} did not run its hooks as it should: {', '.join(wrong)}", code=FAILED)
    # Otherwise a metadata service that is down would look like one that is closed to users.
    if "metadata: open" not in run_in(container, shlex.join([INSTALLED_PYTHON, "-c", _PROGRAM])):
        raise Stop(f"root on {name} does not reach the metadata service", code=FAILED)


def _create_objects(rehearsal: Rehearsal, bucket: str) -> None:
    s3, iam = rehearsal.cloud.client("s3"), rehearsal.cloud.client("iam")
    s3.create_bucket(Bucket=bucket)
    objects: Mapping[str, str] = {"hook.sh": _HOOK, _KEY: TEXT, _OTHER_KEY: TEXT}
    for key, text in objects.items():
        s3.put_object(Bucket=bucket, Key=key, Body=text.encode())
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/{_KEY}"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.create_policy(PolicyName=_POLICY, PolicyDocument=document)
