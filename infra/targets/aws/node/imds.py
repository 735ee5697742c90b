"""Read the instance metadata service (IMDSv2): id, address, tags and credentials of this machine.

Plain Python 3.10 without packages: user data contains this file and runs it before anything is installed.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import NamedTuple

ENDPOINT = "http://169.254.169.254"
LIFETIME_S = "300"
TIMEOUT_S = 5.0
NOT_FOUND = 404
# Never through a proxy: the service answers only the machine itself.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Credentials(NamedTuple):
    """Temporary credentials of the machine's role."""

    key: str
    secret: str
    token: str


def read(path: str) -> str:
    """Return one metadata value."""
    token = _request("PUT", "latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": LIFETIME_S})
    return _request("GET", f"latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})


def read_tag(key: str) -> str:
    """Return a tag of the machine; empty if it does not have it, or not yet: names are assigned after the launch."""
    return read_optional(f"tags/instance/{key}")


def read_optional(path: str) -> str:
    """Return one metadata value; empty if there is none."""
    try:
        return read(path)
    except urllib.error.HTTPError as error:
        if error.code == NOT_FOUND:
            return ""
        raise


def read_credentials() -> Credentials:
    """Return the credentials of the machine's role."""
    role = read("iam/security-credentials/").split()[0]
    values = json.loads(read(f"iam/security-credentials/{role}"))
    return Credentials(values["AccessKeyId"], values["SecretAccessKey"], values["Token"])


def _request(method: str, path: str, headers: dict[str, str]) -> str:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
    request = urllib.request.Request(f"{base.rstrip('/')}/{path}", method=method, headers=headers)  # noqa: S310
    with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())
