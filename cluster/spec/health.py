"""The fields of health checks: how many nodes they may take out of service."""

from __future__ import annotations

from cluster.spec.base import SpecModel, field


class Health(SpecModel):
    """Health checks of the nodes."""

    max_drained_percent: int = field(
        "largest share of a group's running nodes, at least one, that health checks may have drained at a time",
        "safe",
        default=20,
        ge=1,
        le=100,
    )
