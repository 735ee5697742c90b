"""All resource types of the plugin, by token."""

from __future__ import annotations

from tests.infra.targets.aws.with_engine.plugin import iam, machines, management, network, storage
from tests.infra.targets.aws.with_engine.plugin.kind import Kind

KINDS: dict[str, Kind] = {
    kind.token: kind for kind in (*network.KINDS, *machines.KINDS, *storage.KINDS, *iam.KINDS, *management.KINDS)
}
