"""The AWS client of the dynamic providers: it retries in AWS's standard mode."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from infra.targets.aws.launcher.retries import watch_retries

_ATTEMPTS = 7


def create_client(service: str, region: str, attempts: int = _ATTEMPTS) -> Any:
    """Return a client of a service in a region, which makes a failing call at most `attempts` times."""
    retries = {"mode": "standard", "total_max_attempts": attempts}
    return watch_retries(boto3.client(service, region_name=region, config=Config(retries=retries)))
