"""Requirements of `make test-aws`, which costs money: confirmation, credentials and the real plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta

from infra.engine.environment import environment
from infra.engine.stop import Stop
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.aws import plugin as aws_plugin
from infra.targets.aws.account import NO_CREDENTIALS, find_account
from infra.targets.aws.cost import cost
from infra.targets.aws.plan import machines
from infra.targets.aws.preflight import PreflightOptions, run_preflight
from infra.targets.aws.shell import check_tools
from infra.targets.aws.spec import END_FORMAT, region_of
from infra.targets.registry import load_spec as load
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.with_engine.cloud import REPO
from tests.infra.targets.aws.with_engine.cloud_stack import read_example

STACK = "aws-g6-pair"
SPEC = read(REPO / "stacks" / f"Pulumi.{STACK}.yaml")
REGION = region_of(SPEC)
CLUSTER = "test-pair"
ACCOUNT = "MUSTER_TEST_AWS"
"""Variable with the number of the account in which a cluster may be created."""
HOME = "MUSTER_TEST_AWS_HOME"
"""Variable with the folder of the state; `make test-aws` sets it for its own tests only."""


GPU_CLUSTER = "test-gpu"
GPU_GROUP = {"instance_type": "g6.2xlarge", "min": 0, "max": 1, "fabric": "tcp"}
SHORT_JOBS = {"suspend_s": 60, "default_time": "0:30:00", "max_time": "0:30:00"}
GPU_CAP_S = 5400
"""The test of a GPU node is stopped after this time, and its cluster removed."""
REMOVAL_S = 1800
"""Allowance for the removal in the highest price; then the machines end themselves."""
END = "MUSTER_TEST_AWS_END"
"""Variable with the end of the cluster with a GPU node; `make test-aws` sets it for its own test only."""
REHEARSED = "MUSTER_TEST_AWS_REHEARSED"
"""Variable with the address range of a simulated VPC, whose machines have no GPU; only a rehearsal sets it."""


def choose_end(now: datetime) -> str:
    """Return the end of a cluster that is created now: after the cap of the test and the time of the removal."""
    # Rounded up, because the format has no seconds.
    return (now + timedelta(seconds=GPU_CAP_S + REMOVAL_S + 59)).strftime(END_FORMAT)


def gpu_spec_changes() -> dict[str, object]:
    """Return what differs from STACK: one cheap node with a GPU, released a minute after its job, and an end."""
    changes: dict[str, object] = {"name": GPU_CLUSTER, "groups": {"gpu": GPU_GROUP}, "slurm": SHORT_JOBS}
    if end := os.environ.get(END):
        changes["aws"] = {**read_example(STACK)["aws"], "ends_at": end}
    if cidr := os.environ.get(REHEARSED):
        changes["network"] = {**read_example(STACK).get("network", {}), "cidr": cidr}
    return changes


def choose_training() -> list[str]:
    """Return the settings of the training job: compiled on the GPU, or neither in a rehearsal."""
    if os.environ.get(REHEARSED):
        return ["compile.mode=none", "run.device=cpu"]
    return ["compile.mode=blocks", "run.device=cuda"]


def describe_gpu_price() -> str:
    """Return the highest price of the test of a GPU node, and what is left of it if this machine is switched off."""
    spec = load({**read_example(STACK), **gpu_spec_changes()})
    lines, controller = cost(spec).lines, machines.controller(spec).name
    hourly = sum(line.usd_per_hour for line in lines)
    # The volumes of the controller are one line: the root disk ends with its machine, that of the queue stays.
    ending = [line for line in lines if line.part.startswith("groups.") or controller in line.what]
    remaining = hourly - sum(line.usd_per_hour for line in ending)
    highest = hourly * (GPU_CAP_S + REMOVAL_S) / 3600
    return (
        f"at most {highest:.2f} USD ({hourly:.2f} per hour with the GPU node, stopped after {GPU_CAP_S // 60} minutes; "
        f"if this machine cannot stop it, the instances end themselves after {(GPU_CAP_S + REMOVAL_S) // 60} minutes, "
        f"and {remaining:.2f} USD per hour remain until the next run)"
    )


def describe_price() -> str:
    """Return the hourly price; no GPU node is included because the group starts empty."""
    return f"{cost(SPEC).usd_per_hour_min:.2f} USD per hour as long as it runs"


def list_missing(*, gpu: bool = False) -> list[str]:
    """Return the requirements that are not met, each with its fix; `gpu`: those of the test of a GPU node."""
    if not os.environ.get(ACCOUNT):
        price = describe_gpu_price() if gpu else describe_price()
        fix = f"set {ACCOUNT}=<account number> to confirm"
        return [f"confirmation: it creates a real cluster in {REGION}, {price}; {fix}"]
    return [*_check_credentials(os.environ[ACCOUNT]), *_check_plugin(), *(_check_shell_tools() if gpu else ())]


def _check_credentials(confirmed_account: str) -> Iterator[str]:
    try:
        account = find_account(SPEC)
    except ResourceError as error:
        yield f"credentials: {error}"
        return
    if account is None:
        yield f"credentials: {NO_CREDENTIALS}; `aws sso login` or `aws configure`, or set AWS_PROFILE"
        return
    report = run_preflight(SPEC, account, PreflightOptions(checks=()))
    if report.identity is None:
        yield from (f"credentials: {issue.message}; {issue.fix}" for issue in report.issues)
    elif report.identity.account != confirmed_account:
        actual = report.identity.account
        yield f"the right account: the credentials are for {actual}, but {ACCOUNT} is {confirmed_account}"


def _check_shell_tools() -> Iterator[str]:
    """Yield what `muster submit` lacks on this machine."""
    try:
        check_tools()
    except Stop as missing:
        yield f"{missing.what}: {missing.fix}"


def _check_plugin() -> Iterator[str]:
    if not aws_plugin.installed(environment(os.environ, Home.of(os.environ))):
        version = aws_plugin.required_version()
        yield f"Pulumi's AWS plugin {version}: `pulumi plugin install resource aws {version}`"
