"""Names of the SSM parameters and S3 objects through which the engine and the machines exchange data."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ValidationError, field_validator

from cluster.inventory import InventoryModel, Role

NODE_TAG = "muster.node"
"""Tag that holds a machine's node name; the name is its key in the inventory."""
HOST_KEYS = "host-keys.json"
"""Object key of the private host keys of compute nodes by name, which only those who launch nodes read."""
FLEET = "fleet.json"
"""Object key of the Fleet, which only the controller reads."""


BUILDER = "image"
"""Value of the tag of roles of a machine that builds or tests an image."""
LOGS = "logs/"
"""Prefix of the logs that machines store."""
LOG, PACKAGE_LIST = "log.gz", "packages.json.gz"
"""What a machine stores in its own folder: its logs, and the packages of an image that it built."""


class Report(InventoryModel):
    """How far the set-up of a machine got: the value of the node's parameter."""

    instance: str
    state: Literal["working", "ready", "failed", "unreadable"]
    """`unreadable` is written by no machine: the value of the parameter is no report."""
    step: str = ""
    line: str = ""
    at: str = ""
    """Time of the report, ISO 8601 in UTC."""
    bundle: str = ""
    """Digest of the bundle that the machine applied."""

    @field_validator("step", "line", "at", "bundle")
    @classmethod
    def _drop_control_characters(cls, text: str) -> str:
        """Drop what would move the cursor, or worse, in the terminal of whoever reads the report.

        Line breaks become spaces, so that words do not run together.
        """
        return "".join(character for character in " ".join(text.split()) if character.isprintable())


def parse_report(value: str) -> Report:
    """Return the report in a parameter; anything else that a machine wrote is an unreadable report."""
    try:
        return Report.model_validate_json(value)
    except ValidationError as error:
        reason = error.errors()[0]
        where = ".".join(map(str, reason["loc"]))
        return Report(instance="", state="unreadable", line=f"{where}: {reason['msg']}" if where else reason["msg"])


def root(cluster: str) -> str:
    """Return the path under which every parameter of the cluster is."""
    return f"/muster/{cluster}"


def nodes(cluster: str) -> str:
    """Return the path under which every node has one parameter, named after the node."""
    return f"{root(cluster)}/nodes"


def node(cluster: str, name: str) -> str:
    """Return the parameter that holds the report of one node."""
    return f"{nodes(cluster)}/{name}"


def slurm_key(cluster: str) -> str:
    """Return the SecureString parameter with Slurm's authentication key in base64."""
    return f"{root(cluster)}/slurm-key"


def db_password(cluster: str) -> str:
    """Return the SecureString parameter with the database password; only the controller may read it."""
    return f"{root(cluster)}/db-password"


def webhook(cluster: str) -> str:
    """Return the SecureString parameter with the address that gets alerts; only the controller may read it."""
    return f"{root(cluster)}/webhook"


def host_key(cluster: str, role: Role) -> str:
    """Return the SecureString parameter with the private SSH host key of the controller or the login node."""
    return f"{root(cluster)}/host-keys/{role}"


def own_host_key(machine_arn: str) -> str:
    """Return the object key of the private SSH host key of a compute node, which only its machine can read."""
    return f"host-keys/{machine_arn}"


def builder(purpose: str) -> str:
    """Return the name under which a machine that builds an image reports."""
    return f"{BUILDER}-{purpose}"


def bundle(sha256: str) -> str:
    """Return the object key of a bundle."""
    return f"bundle/{sha256}.tar"


def logs(node_name: str) -> str:
    """Return the prefix of what all machines of a node stored."""
    return f"{LOGS}{node_name}/"


def stored(node_name: str, machine_arn: str, name: str = LOG) -> str:
    """Return the object key of what one machine stored: its role can write only below the machine's own ARN."""
    return f"{logs(node_name)}{machine_arn}/{name}"


def read_machine(node_name: str, key: str, name: str = LOG) -> str:
    """Return the id of the machine that stored an object; empty if the key is none of `stored`.

    A role can also write deeper in its own folder, where a key could look like that of another machine.
    """
    own = rf"arn:[^/]+:instance/(?P<id>i-[^/]+)/{re.escape(name)}"
    # Earlier versions stored logs by the id alone; roles cannot write there any more.
    earlier = r"(?P<earlier>i-[^/.]+)\.log\.gz"
    match = re.fullmatch(rf"{re.escape(logs(node_name))}(?:{own}|{earlier})", key)
    return (match["id"] or match["earlier"]) if match else ""


def packages(name: str) -> str:
    """Return the object key of packages that the controller built for all nodes."""
    return f"packages/{name}.tar"
