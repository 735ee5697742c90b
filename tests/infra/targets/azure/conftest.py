"""A server that stands in for Azure, and a client that asks it without pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.targets.azure import client
from tests.infra.targets.azure.arm_server import serve_arm
from tests.infra.targets.azure.fake_arm import FakeArm


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeArm]:
    monkeypatch.setattr(client, "LOOPBACK_POLL_S", 0.01)
    monkeypatch.setattr(client, "BUSY_PAUSE_S", 0.01)
    with serve_arm(FakeArm()) as served:
        monkeypatch.setenv(client.LOOPBACK, str(served.port))
        yield served
