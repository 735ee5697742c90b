"""AWS clients of the providers: one region, standard retries."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

_RETRIES = {"mode": "standard", "max_attempts": 6}


def client(service: str, region: str) -> Any:
    return boto3.client(service, region_name=region, config=Config(retries=_RETRIES))
