"""Fixtures of the power-saving tests: AWS on moto, a fleet, a fake slurmctld, a clock and a context."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from infra.targets.aws.launcher.fleet import Fleet
from tests.moto_server import Moto
from tests.slurm.power.cluster import AwsContext, Clock, FakeSlurm, make_context, make_fleet


@pytest.fixture
def fleet(aws: Moto) -> Fleet:
    return make_fleet(aws)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


@pytest.fixture
def clock() -> Clock:
    """Return a clock that starts at the real time, because moto stamps machines with it."""
    return Clock(time.time())


@pytest.fixture
def context(fleet: Fleet, tmp_path: Path, slurm: FakeSlurm, clock: Clock) -> AwsContext:
    return make_context(fleet, tmp_path, slurm, clock)
