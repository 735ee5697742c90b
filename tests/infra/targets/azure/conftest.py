"""A server that stands in for Azure, and a client that asks it without pauses, or by a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.targets.azure import client, retries
from infra.targets.rented import removal
from tests.infra.targets.azure.arm_server import serve_arm
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.clock import Clock, install_clock


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeArm]:
    monkeypatch.setattr(client, "LOOPBACK_POLL_S", 0.01)
    monkeypatch.setattr(client, "BUSY_PAUSE_S", 0.01)
    with serve_arm(FakeArm()) as served:
        monkeypatch.setenv(client.LOOPBACK, str(served.port))
        yield served


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install_clock(monkeypatch, client, retries, removal)
