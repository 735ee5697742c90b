"""Injected errors: every service's library reads their code, and throttling has the code of the service."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.rehearse.moto_errors import denial_code, throttle_code
from tests.moto_server import Moto

# One call of each service that muster uses.
CALLS = {
    "ec2": "describe_vpcs",
    "iam": "list_roles",
    "sts": "get_caller_identity",
    "s3": "list_buckets",
    "route53": "list_hosted_zones",
    "ssm": "describe_parameters",
    "kms": "list_keys",
    "efs": "describe_file_systems",
    "fsx": "describe_file_systems",
    "logs": "describe_log_groups",
}


@pytest.mark.parametrize("service", CALLS)
def test_the_code_of_an_injected_error_is_read(aws: Moto, service: str) -> None:
    aws.interfere = lambda *_: "NeverHeardOf"
    with pytest.raises(ClientError) as caught:
        getattr(aws.client(service), CALLS[service])()
    assert caught.value.response["Error"]["Code"] == "NeverHeardOf"
    assert caught.value.response["Error"]["Message"] == "injected"


@pytest.mark.parametrize("service", CALLS)
def test_throttling_and_denials_have_a_code_of_the_table(service: str) -> None:
    for code, kind in ((throttle_code(service), "throttle"), (denial_code(service), "permission")):
        assert classify_error(ClientError({"Error": {"Code": code}}, "")).kind == kind
