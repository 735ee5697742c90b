"""What goes wrong in a cloud, rehearsed: each scenario checks what must hold, and that teardown leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.targets.aws.rehearse.scenarios import SCENARIOS
from tests.infra.targets.aws.rehearse.run_rehearsal import run_rehearsal

TIMEOUT_S = 1800

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 300)]


# test_rehearsal.py rehearses the first two, in which nothing goes wrong.
@pytest.mark.fault(13, case="spot-notice")
@pytest.mark.fault(13, case="spot-notice-early")
@pytest.mark.fault(17, case="late-listing")
@pytest.mark.fault(25, case="throttling")
@pytest.mark.fault(26, case="no-capacity-controller")
@pytest.mark.fault(26, case="no-capacity-nodes")
@pytest.mark.fault(26, case="no-spot")
@pytest.mark.fault(34, 35, case="failed-prolog")
@pytest.mark.parametrize("scenario", list(SCENARIOS)[2:])
def test_scenario(tmp_path: Path, scenario: str) -> None:
    assert "rehearsed in " in run_rehearsal(
        tmp_path, "aws-g6-pair", "--speed", "20", "--scenario", scenario, timeout_s=TIMEOUT_S
    )
