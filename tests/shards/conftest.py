"""Fixtures for shards in S3."""

from __future__ import annotations

from tests.moto_server import aws, moto

__all__ = ["aws", "moto"]
