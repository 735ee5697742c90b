"""Fixtures of the tests that build images."""

from __future__ import annotations

from tests.infra.targets.aws.images.test_build_images import home

__all__ = ["home"]
