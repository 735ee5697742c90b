"""Scenarios of other examples than the g6 pair: with static groups, Lustre, a login node, or an existing VPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import list_remains, run_rehearsal

TIMEOUT_S = 1800
SCENARIOS = [
    ("aws-p5en-lustre", "image-refresh"),
    ("aws-p5en-lustre", "resize"),
    ("aws-p5en-lustre", "dead-node"),
    ("aws-p5en-lustre", "dead-controller"),
    ("aws-p5-autoscaled", "dead-node"),
    ("aws-existing-vpc", "resize"),
]

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 300)]


@pytest.mark.parametrize(("stack", "scenario"), SCENARIOS)
def test_scenario(stack: str, scenario: str, tmp_path: Path) -> None:
    output = run_rehearsal(tmp_path, stack, "--speed", "20", "--scenario", scenario, timeout_s=TIMEOUT_S)
    assert "rehearsed in " in output
    assert "denied" not in (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert list_remains(tmp_path, stack) == []
