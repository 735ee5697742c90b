"""Stacks on moto, whose account is empty at the start of each module, or in a real account."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.simulated_boot import simulate_boot
from tests.infra.targets.aws.with_engine.cloud import Cloud, in_account, on_moto
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, example
from tests.infra.targets.aws.with_engine.requirements import ACCOUNT, HOME, REGION
from tests.moto_server import Moto

MakeStack = Callable[..., CloudStack]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/with_engine/" in item.path.as_posix() and "plugin" not in item.path.name:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Reset the SIGINT handler: Pulumi stops plugins with it, but background jobs of a shell ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def account(moto: Moto) -> Iterator[Moto]:
    moto_gaps.apply()
    moto.reset()
    with pytest.MonkeyPatch.context() as patch, simulate_boot():
        for name, value in moto.environment().items():
            patch.setenv(name, value)
        yield moto


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Return moto, or the real account in `make test-aws`."""
    if os.environ.get(HOME):
        return in_account(os.environ[ACCOUNT], REGION, os.environ)
    return on_moto(request.getfixturevalue("account"))


@pytest.fixture(scope="module")
def make_stack(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> MakeStack:
    def stack(name: str, /, **changes: Any) -> CloudStack:
        home = Path(os.environ[HOME]) if os.environ.get(HOME) else tmp_path_factory.mktemp(name)
        return example(name, home, cloud, **changes)

    return stack
