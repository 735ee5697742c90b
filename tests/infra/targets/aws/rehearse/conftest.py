"""Fixtures of the rehearsal's tests."""

from __future__ import annotations

from tests.infra.targets.aws.rehearse.instances_without_docker import engine

__all__ = ["engine"]
