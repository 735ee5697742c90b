"""The account that the credentials belong to: clients with short timeouts, and the caller's identity."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    LoginError,
    SSOError,
    TokenRetrievalError,
)
from botocore.session import get_session

from cluster.spec.issue import Issue, error, warning
from infra.resources.error import ResourceError
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.launcher.retries import watch_retries

# A user waits for the whole pre-flight: two attempts, each with a short timeout.
_SHORT_TIMEOUTS = Config(connect_timeout=3, read_timeout=6, retries={"mode": "standard", "total_max_attempts": 2})
# This region is enabled in every account.
_DEFAULT_REGION = "us-east-1"
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
# The session of IAM Identity Center or `aws login` has ended or never began; the library raises before calling AWS.
_NO_SESSION = (SSOError, LoginError, TokenRetrievalError)
_WHERE = "aws.region"


@dataclass(frozen=True)
class Identity:
    """The caller as STS reports it."""

    account: str
    arn: str

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]


class Account:
    """A region of the caller's account."""

    def __init__(self, session: boto3.Session, region: str) -> None:
        self.region = region
        self._session, self._lock = session, threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str | None = None) -> Any:
        """Return the client of a service; threads may share clients, but not create them at the same time."""
        key = (service, region or self.region)
        with self._lock:
            if key not in self._clients:
                client = self._session.client(service, region_name=key[1], config=_SHORT_TIMEOUTS)
                self._clients[key] = watch_retries(client)
            return self._clients[key]

    def identity(self) -> Identity:
        return self._get_identity(self.region)

    def _get_identity(self, region: str) -> Identity:
        response = self.client("sts", region).get_caller_identity()
        return Identity(response["Account"], response["Arn"])

    def explain_failure(self, failure: ClientError | BotoCoreError) -> Iterator[Issue]:
        """Yield what a failure to get the identity means."""
        fault = classify_error(failure)
        if fault.code in _EXPIRED or isinstance(failure, _NO_SESSION):
            yield error(
                "credentials_expired",
                _WHERE,
                f"the credentials have expired ({fault.code})",
                "log in again (`aws sso login`, or new keys), then run `make check` again",
            )
        elif isinstance(failure, (ConnectionError, HTTPClientError)):
            message = f"AWS does not answer ({type(failure).__name__}): the account was not checked"
            yield warning("aws_silent", _WHERE, message, "check the network and the proxy, then run it again")
        elif fault.kind == "throttle":
            message = f"AWS throttles requests ({fault.code}): the account was not checked"
            yield warning("aws_busy", _WHERE, message, "run it again in a minute")
        elif other := self._get_default_identity():
            message = f"the credentials are valid, but not in {self.region}: account {other.account} has not enabled it"
            fix = f"`aws account enable-region --region-name {self.region}`, or another region"
            yield error("region_not_enabled", _WHERE, message, fix)
        else:
            message = f"the credentials are not accepted ({fault.code})"
            yield error(
                "credentials_refused",
                _WHERE,
                message,
                "`aws sts get-caller-identity` must work; then run `make check` again",
            )

    def _get_default_identity(self) -> Identity | None:
        """Return the identity in a region that is always enabled."""
        if self.region == _DEFAULT_REGION:
            return None
        try:
            return self._get_identity(_DEFAULT_REGION)
        except (ClientError, BotoCoreError):
            return None


def load_session(*, metadata: bool) -> boto3.Session | None:
    """Return a session with credentials; None if there are none.

    `metadata` includes the role of the instance, which outside EC2 takes seconds to time out.
    """
    try:
        core = get_session()
        if not metadata:
            core.get_component("credential_provider").remove("iam-role")
        session = boto3.Session(botocore_session=core)
        return session if session.get_credentials() else None
    except BotoCoreError as failure:
        message = f"the credentials cannot be read ({type(failure).__name__}: {failure})"
        raise ResourceError(
            "aws", message, "correct AWS_PROFILE or ~/.aws, or unset it to work without an account"
        ) from None
