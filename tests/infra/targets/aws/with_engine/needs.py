"""What `make test-aws` needs before it makes a cluster for money: a yes, credentials, the real plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator

from infra.engine.environment import environment
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.aws import plugin as aws_plugin
from infra.targets.aws.account import NO_CREDENTIALS, find_account
from infra.targets.aws.cost import cost
from infra.targets.aws.preflight import PreflightOptions, run_preflight
from infra.targets.aws.spec import region_of
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.with_engine.cloud import REPO

STACK = "aws-g6-pair"
SPEC = read(REPO / "stacks" / f"Pulumi.{STACK}.yaml")
REGION = region_of(SPEC)
CLUSTER = "test-pair"
ACCOUNT = "MUSTER_TEST_AWS"
"""The account's number: a yes to this one, and to no other."""
HOME = "MUSTER_TEST_AWS_HOME"
"""Variable with the folder of the state; `make test-aws` sets it for its own tests only."""


def price() -> str:
    """No GPU node is started: the group has none as long as no job asks for one."""
    return f"{cost(SPEC).usd_per_hour_min:.2f} USD per hour as long as it runs"


def missing() -> list[str]:
    if not os.environ.get(ACCOUNT):
        yes = f"{ACCOUNT}=<number of the account> says yes to that account"
        return [f"a yes: it makes a real cluster in {REGION}, {price()}; {yes}"]
    return [*_credentials(os.environ[ACCOUNT]), *_plugin()]


def _credentials(wanted: str) -> Iterator[str]:
    try:
        found = find_account(SPEC)
    except ResourceError as bad:
        yield f"credentials: {bad}"
        return
    if found is None:
        yield f"credentials: {NO_CREDENTIALS}; `aws sso login` or `aws configure`, or set AWS_PROFILE"
        return
    done = run_preflight(SPEC, found, PreflightOptions(checks=()))
    if done.identity is None:
        yield from (f"credentials: {issue.message}; {issue.fix}" for issue in done.issues)
    elif done.identity.account != wanted:
        yield f"the right account: the credentials are of {done.identity.account}, {ACCOUNT} says {wanted}"


def _plugin() -> Iterator[str]:
    if not aws_plugin.installed(environment(os.environ, Home.of(os.environ))):
        wanted = aws_plugin.required_version()
        yield f"Pulumi's AWS plugin {wanted}: `pulumi plugin install resource aws {wanted}`"
