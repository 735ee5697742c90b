"""The account behind the credentials: clients that never wait long, and who is asking."""

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
from infra.resources.problem import Problem
from infra.targets.aws.launcher.errors import classify_error

# Whole calls have to fit into what a person waits for: two tries, each soon given up.
_SHORT = Config(connect_timeout=3, read_timeout=6, retries={"mode": "standard", "total_max_attempts": 2})
# Enabled in every account.
_ALWAYS_ON = "us-east-1"
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
# A session of IAM Identity Center or of `aws login` that ended, or was never begun: AWS is not even asked then.
_NO_SESSION = (SSOError, LoginError, TokenRetrievalError)
_WHERE = "aws.region"


@dataclass(frozen=True)
class Identity:
    account: str
    arn: str

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]


class Account:
    def __init__(self, session: boto3.Session, region: str) -> None:
        self.region = region
        self._session, self._lock = session, threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str | None = None) -> Any:
        """One for each service: clients may be shared by threads, making them may not."""
        key = (service, region or self.region)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._session.client(service, region_name=key[1], config=_SHORT)
            return self._clients[key]

    def identity(self) -> Identity:
        return self._identity(self.region)

    def _identity(self, region: str) -> Identity:
        said = self.client("sts", region).get_caller_identity()
        return Identity(said["Account"], said["Arn"])

    def why_not(self, failure: ClientError | BotoCoreError) -> Iterator[Issue]:
        """What a refused or missing identity means."""
        fault = classify_error(failure)
        if fault.code in _EXPIRED or isinstance(failure, _NO_SESSION):
            yield error(
                "credentials_expired",
                _WHERE,
                f"the credentials have expired ({fault.code})",
                "log in again: `aws sso login`, or new keys",
            )
        elif isinstance(failure, (ConnectionError, HTTPClientError)):
            message = f"AWS does not answer ({type(failure).__name__}): the account was not looked at"
            yield warning("aws_silent", _WHERE, message, "look at the network and the proxy, then run it again")
        elif fault.kind == "throttle":
            message = f"AWS asks to wait ({fault.code}): the account was not looked at"
            yield warning("aws_busy", _WHERE, message, "run it again in a minute")
        elif elsewhere := self._elsewhere():
            message = (
                f"the credentials are good, but not in {self.region}: account {elsewhere.account} has not enabled it"
            )
            fix = f"`aws account enable-region --region-name {self.region}`, or another region"
            yield error("region_not_enabled", _WHERE, message, fix)
        else:
            message = f"the credentials are not accepted ({fault.code})"
            yield error(
                "credentials_refused", _WHERE, message, "`aws sts get-caller-identity` must work; then run it again"
            )

    def _elsewhere(self) -> Identity | None:
        """Who the credentials belong to in a region that is always on."""
        if self.region == _ALWAYS_ON:
            return None
        try:
            return self._identity(_ALWAYS_ON)
        except (ClientError, BotoCoreError):
            return None


def credentials(*, metadata: bool) -> boto3.Session | None:
    """None where there are none; `metadata`: whether the machine's own role is asked for, which outside EC2 means
    seconds of waiting for nobody."""
    try:
        core = get_session()
        if not metadata:
            core.get_component("credential_provider").remove("iam-role")
        made = boto3.Session(botocore_session=core)
        return made if made.get_credentials() else None
    except BotoCoreError as bad:
        what = f"the credentials cannot be read ({type(bad).__name__}: {bad})"
        raise Problem("aws", what, "mend AWS_PROFILE or ~/.aws, or unset it to do without an account") from None
