"""What the machine's metadata service says (IMDSv2): its id, address, tags, credentials.

Plain Python 3.10 without packages: user data carries this file and runs it before anything is installed."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import NamedTuple

ENDPOINT = "http://169.254.169.254"
LIFE_S = "300"
TIMEOUT_S = 5.0
NOT_FOUND = 404
# Never through a proxy: the service answers the machine itself only.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Credentials(NamedTuple):
    key: str
    secret: str
    token: str


def read(path: str) -> str:
    token = _ask("PUT", "latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": LIFE_S})
    return _ask("GET", f"latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})


def tag(key: str) -> str:
    """Empty where the machine has no such tag, or not yet: names are given after the launch."""
    try:
        return read(f"tags/instance/{key}")
    except urllib.error.HTTPError as refused:
        if refused.code == NOT_FOUND:
            return ""
        raise


def credentials() -> Credentials:
    role = read("iam/security-credentials/").split()[0]
    found = json.loads(read(f"iam/security-credentials/{role}"))
    return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])


def _ask(method: str, path: str, headers: dict[str, str]) -> str:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    request = urllib.request.Request(f"{base.rstrip('/')}/{path}", method=method, headers=headers)  # noqa: S310
    with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())
