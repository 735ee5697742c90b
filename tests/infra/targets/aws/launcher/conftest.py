"""Fixtures shared with the tests of the power programs, which also use moto."""

from __future__ import annotations

from tests.slurm.power.conftest import clock, context, fleet, slurm

__all__ = ["clock", "context", "fleet", "slurm"]
