"""A quick test for AWS credentials on this machine, without loading AWS's libraries or using the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}
_VENDOR = Path("/sys/class/dmi/id/sys_vendor")
_EC2 = "Amazon EC2"


def may_exist(environment: Mapping[str, str], vendor: Path = _VENDOR) -> bool:
    """Return False if there are certainly no credentials, True if AWS's library has to look."""
    home = Path(environment.get("HOME", "/"))
    files = (Path(environment.get(name, home / default)) for name, default in _FILES.items())
    return any(map(environment.get, _VARIABLES)) or any(file.is_file() for file in files) or is_on_ec2(vendor)


def is_on_ec2(vendor: Path = _VENDOR) -> bool:
    """Return whether this machine is an EC2 instance, which may have its own role.

    Elsewhere the metadata service does not exist, and waiting for it takes seconds.
    """
    try:
        return vendor.read_text().strip() == _EC2
    except OSError:
        return False
