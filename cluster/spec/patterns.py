"""Patterns of names and paths in the spec, and how error messages describe them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.spec.alerts import WEBHOOK

NAME = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"
USER_NAME = r"^[a-z][a-z0-9_-]{0,30}$"
MOUNT = r"^(/[a-z0-9][a-z0-9_-]*)+$"
PATTERN_WORDS = {
    WEBHOOK: "a web address, encrypted by `muster alerts`",
    NAME: "a name (at most 20 lower-case letters, digits and '-'; starts with a letter, does not end with '-')",
    USER_NAME: "a user name (at most 31 lower-case letters, digits, '_' and '-'; starts with a letter)",
    MOUNT: "an absolute path of lower-case letters, digits, '_' and '-'",
}

# Valid as a Slurm node name, a container name and a DNS label.
Name = Annotated[str, Field(pattern=NAME)]
UserName = Annotated[str, Field(pattern=USER_NAME)]
