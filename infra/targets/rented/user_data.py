"""The cloud-init user data of a machine. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

HEADER = "#cloud-config\n"
METADATA_ADDRESSES = ("169.254.169.254",)
"""Of the service that hands out user data to every process of a machine that asks; bootstrap leaves it to root."""


def render_user_data(authorized_key: str, scripts: Sequence[str], **settings: Any) -> str:
    """Return user data: the key that may log in as root, scripts that run at the first boot, and other settings."""
    document: dict[str, Any] = {
        **settings,
        "manage_etc_hosts": False,
        "ssh_deletekeys": True,
        "ssh_pwauth": False,
        "disable_root": False,
        "ssh_authorized_keys": [authorized_key],
        "runcmd": [["sh", "-ec", script] for script in scripts],
    }
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=4096)
