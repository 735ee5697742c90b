"""All resource types of the plugin, by token."""

from __future__ import annotations

from tests.aws_engine.plugin import ec2, rights, storage
from tests.aws_engine.plugin.kind import Kind

KINDS: dict[str, Kind] = {kind.token: kind for kind in (*ec2.KINDS, *storage.KINDS, *rights.KINDS)}
