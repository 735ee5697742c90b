"""AWS on a loopback port, as fixtures.

In a conftest: `from tests.moto_server import aws, moto` (`aws` is fresh for each test and sets the environment).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from botocore.client import ClientCreator
from botocore.loaders import create_loader
from botocore.model import ServiceModel

from infra.targets.aws.rehearse import moto_calls
from infra.targets.aws.rehearse.moto_server import ACCOUNT, ENVIRONMENT, REGION, Call, Moto, listening

__all__ = ["ACCOUNT", "ENVIRONMENT", "REGION", "Call", "Moto", "aws", "listening", "moto"]


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """Yield a running server that all tests of the session share."""
    moto_calls.apply()
    server = Moto()
    with pytest.MonkeyPatch.context() as patch, listening(server) as server.url:
        # Sessions share what they have read: the model of EC2 alone takes a quarter of a second.
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        patch.setattr(ClientCreator, "_create_methods", create_methods_once())
        yield server


def create_methods_once() -> Callable[[ClientCreator, ServiceModel], dict[str, Any]]:
    """Return botocore's method that creates the 700 methods of an EC2 client, but creates those of a service once.

    Methods depend on the service alone; each client still has a class of its own.
    """
    create, methods = ClientCreator._create_methods, {}

    def create_methods(self: ClientCreator, service_model: ServiceModel) -> dict[str, Any]:
        key = (service_model.service_name, service_model.api_version)
        if key not in methods:
            methods[key] = create(self, service_model)
        return dict(methods[key])

    return create_methods


@pytest.fixture
def aws(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """Return the server without state or faults; the environment points to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    moto.reset()
    return moto
