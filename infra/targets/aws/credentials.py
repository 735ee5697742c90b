"""Whether this machine may have AWS credentials, told without loading AWS's libraries or asking anybody."""

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


def likely(environment: Mapping[str, str], vendor: Path = _VENDOR) -> bool:
    """False is sure; true means that it is worth asking the library."""
    home = Path(environment.get("HOME", "/"))
    files = (Path(environment.get(name, home / usual)) for name, usual in _FILES.items())
    return any(map(environment.get, _VARIABLES)) or any(file.is_file() for file in files) or on_ec2(vendor)


def on_ec2(vendor: Path = _VENDOR) -> bool:
    """A machine of EC2 may have a role of its own; elsewhere its metadata service leads nowhere, and waiting for it
    takes seconds."""
    try:
        return vendor.read_text().strip() == _EC2
    except OSError:
        return False
