"""What goes wrong in a cloud, rehearsed: each scenario checks what must hold, and that teardown leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.targets.aws.rehearse.scenarios import SCENARIOS
from tests.infra.targets.aws.rehearse.run_rehearsal import find_passed, run_rehearsal

TIMEOUT_S = 1800
SHARED = [
    ("no-capacity-controller", "failed-prolog", "dead-controller"),
    ("no-capacity-nodes", "dead-node", "spot-notice", "resize"),
]
"""Scenarios that run one after the other on one cluster, which takes less time than a cluster for each."""
# test_rehearsal.py rehearses the first two, in which nothing goes wrong.
ALONE = [name for name in list(SCENARIOS)[2:] if not any(name in names for names in SHARED)]

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2 * TIMEOUT_S + 300)]


@pytest.mark.fault(13, case="spot-notice-early")
@pytest.mark.fault(17, case="late-listing")
@pytest.mark.fault(25, case="throttling")
@pytest.mark.fault(26, case="no-spot")
@pytest.mark.parametrize("scenario", ALONE)
def test_scenario(tmp_path: Path, scenario: str) -> None:
    assert "rehearsed in " in run_rehearsal(
        tmp_path, "aws-g6-pair", "--speed", "20", "--scenario", scenario, timeout_s=TIMEOUT_S
    )


@pytest.mark.fault(13, case="no-capacity-nodes,dead-node,spot-notice,resize")
@pytest.mark.fault(26, case="no-capacity-controller,failed-prolog,dead-controller")
@pytest.mark.fault(26, case="no-capacity-nodes,dead-node,spot-notice,resize")
@pytest.mark.fault(34, 35, case="no-capacity-controller,failed-prolog,dead-controller")
@pytest.mark.parametrize("scenarios", SHARED, ids=",".join)
def test_scenarios_on_one_cluster(tmp_path: Path, scenarios: tuple[str, ...]) -> None:
    """If one fails, `muster rehearse --scenario` with its name repeats it alone."""
    output = run_rehearsal(
        tmp_path, "aws-g6-pair", "--speed", "20", "--scenario", ",".join(scenarios), timeout_s=2 * TIMEOUT_S
    )
    assert "rehearsed in " in output
    assert find_passed(output) == list(scenarios)
