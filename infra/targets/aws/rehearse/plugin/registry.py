"""All resource types of the plugin, by token."""

from __future__ import annotations

from infra.targets.aws.rehearse.plugin import efs, iam, machines, management, network, storage
from infra.targets.aws.rehearse.plugin.kind import Kind

KINDS: dict[str, Kind] = {
    kind.token: kind
    for kind in (*network.KINDS, *machines.KINDS, *storage.KINDS, *efs.KINDS, *iam.KINDS, *management.KINDS)
}
