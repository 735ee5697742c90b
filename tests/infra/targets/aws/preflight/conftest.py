"""AWS for the pre-flight tests: moto's server, and canned responses for the calls that moto lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from infra.targets.aws.preflight.account import Account
from tests.moto_server import REGION, Moto

Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]


class CannedAws:
    """An account with canned responses for some calls; botocore still validates their parameters."""

    def __init__(self, region: str) -> None:
        self.session = boto3.Session(
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name=region,
        )
        self.account = Account(self.session, region)
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def answer(self, service: str, operation: str, answer: Answer) -> None:
        """Answer every call of an operation; `service` is its name in botocore's events (`service-quotas`, `ec2`)."""
        self._register(service, operation, 200, answer)

    def refuse(self, service: str, operation: str, code: str, message: str = "injected", times: int = 10) -> None:
        """Answer the next `times` calls of an operation with this error."""
        left = [times]

        def error(_: dict[str, Any]) -> dict[str, Any]:
            left[0] -= 1
            return {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}} if left[0] >= 0 else {}

        self._register(service, operation, 400, error)

    def _register(self, service: str, operation: str, status: int, answer: Answer) -> None:
        def handler(params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
            self.requests.append((operation, params))
            response = answer(params) if callable(answer) else answer
            return AWSResponse("", status, {}, None), response

        self.session.events.register_first(f"before-call.{service}.{operation}", handler)


@pytest.fixture
def canned_aws(aws: Moto) -> CannedAws:
    """Return an account in which moto answers every call that has no canned response."""
    return CannedAws(REGION)
