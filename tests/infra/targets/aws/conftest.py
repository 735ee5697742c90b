"""The short rehearsal of `make test`, which runs next to the other tests of this folder that need machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.infra.targets.aws.rehearse.run_rehearsal import RunningRehearsal

FIXTURE = "short_rehearsal"
STACK = "aws-g6-pair"
# One node, and delays so short that this machine's own time is all that is left; the order stays that of AWS.
OPTIONS = ("--nodes", "1", "--speed", "100")


@pytest.fixture(scope="session", autouse=True)
def start_rehearsal_early(request: pytest.FixtureRequest) -> None:
    """Start the rehearsal before the first test, if a test that was selected uses it: most of its time is waiting."""
    if any(FIXTURE in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue(FIXTURE)


@pytest.fixture(scope="session")
def short_rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRehearsal]:
    """Return a rehearsal that is under way."""
    from tests.infra.targets.aws.rehearse.run_rehearsal import start_rehearsal  # noqa: PLC0415  # only tests of the layer e2e have Docker

    running = start_rehearsal(tmp_path_factory.mktemp("rehearsal"), STACK, *OPTIONS)
    yield running
    if running.process.poll() is None:
        running.interrupt()
