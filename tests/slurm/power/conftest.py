"""AWS for these tests, and what every one of them needs: a fleet, a slurmctld made of answers, a clock, a context."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from infra.targets.aws.launcher.fleet import Fleet
from slurm.power.context import Context
from tests.moto_server import Moto, aws, moto
from tests.slurm.power.cluster import Clock, FakeSlurm, make_context, make_fleet

__all__ = ["aws", "moto"]


@pytest.fixture
def fleet(aws: Moto) -> Fleet:
    return make_fleet(aws)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


@pytest.fixture
def clock() -> Clock:
    """Begins now, for moto's machines are launched then."""
    return Clock(time.time())


@pytest.fixture
def context(fleet: Fleet, tmp_path: Path, slurm: FakeSlurm, clock: Clock) -> Context:
    return make_context(fleet, tmp_path, slurm, clock)
