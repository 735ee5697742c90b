"""AWS as fixtures: on a loopback port for other processes, and as function calls for this one, which are faster.

In a conftest: `from tests.moto_server import aws, moto` (`aws` is fresh for each test and sets the environment).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from infra.targets.aws.rehearse import moto_calls
from infra.targets.aws.rehearse.direct_calls import call_directly
from infra.targets.aws.rehearse.moto_server import ACCOUNT, ENVIRONMENT, REGION, Call, Moto, listening

__all__ = ["ACCOUNT", "ENVIRONMENT", "REGION", "Call", "Moto", "aws", "listening", "moto"]


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """Yield a running server that all tests of the session share."""
    moto_calls.apply()
    server = Moto()
    with listening(server) as server.url, call_directly(server):
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
