"""A server that stands in for Nebius's API, and clients that poll it without pauses, by a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.targets.nebius import client
from infra.targets.rented import removal
from tests.infra.targets.clock import Clock, install_clock
from tests.infra.targets.nebius.fake_cloud import FakeCloud, serve_cloud


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    monkeypatch.setattr(client, "POLL_S", 0.01)
    with serve_cloud(FakeCloud()) as served:
        monkeypatch.setenv(client.LOOPBACK, str(served.port))
        yield served


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install_clock(monkeypatch, client, removal)
