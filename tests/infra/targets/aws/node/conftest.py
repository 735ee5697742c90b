"""Fixtures: the machines of the end-to-end tests, and moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.targets.aws.node.machines import Machines, machines
from tests.moto_server import Moto


@pytest.fixture(scope="module")
def cloud(moto: Moto) -> Iterator[Machines]:
    moto.reset()
    with machines(moto) as started:
        yield started
