"""All resource types of the plugin, by token."""

from __future__ import annotations

from tests.aws_engine.plugin import machines, network, rights, storage
from tests.aws_engine.plugin.kind import Kind

KINDS: dict[str, Kind] = {kind.token: kind for kind in (*network.KINDS, *machines.KINDS, *storage.KINDS, *rights.KINDS)}
