"""The AWS client of the dynamic providers: it retries in AWS's standard mode."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

_RETRIES = {"mode": "standard", "max_attempts": 6}


def create_client(service: str, region: str) -> Any:
    """Return a client of a service in a region."""
    return boto3.client(service, region_name=region, config=Config(retries=_RETRIES))
