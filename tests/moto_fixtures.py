"""The simulated AWS as fixtures for all tests: `aws` is fresh for each test and sets the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.moto_server import Moto


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """Yield a running server that all tests of the session share."""
    from tests.moto_server import serve_tests  # noqa: PLC0415  # moto takes 2 s to import; most tests do without it

    with serve_tests() as server:
        yield server


@pytest.fixture
def aws(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """Return the server without state or faults; the environment points to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    moto.reset()
    return moto


@pytest.fixture
def filled_moto_gaps() -> None:
    """Fill moto's gaps: it does not report the VPC of a filesystem."""
    from infra.targets.aws.rehearse import moto_gaps  # noqa: PLC0415  # imports moto

    moto_gaps.apply()


@pytest.fixture
def unreachable_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point clients to a port that nothing listens on; they do not pause before they retry."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _seconds: None))
