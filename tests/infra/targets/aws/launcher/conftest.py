"""The fixtures of the power programs' tests, which run against the same stub of AWS."""

from __future__ import annotations

from tests.moto_server import aws, moto
from tests.slurm.power.conftest import clock, context, fleet, slurm

__all__ = ["aws", "clock", "context", "fleet", "moto", "slurm"]
