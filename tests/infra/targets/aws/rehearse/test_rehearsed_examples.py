"""Rehearsals of the other examples: up, a job on two nodes, teardown, nothing left on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import list_remains, run_rehearsal

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SPEED = "30"
NODES = {
    "aws-p5en-lustre": "h200-1, h200-2",
    "aws-existing-vpc": "l40s-1, l40s-2",
    "aws-p5-autoscaled": "h100-1, h100-2",
    "aws-full": "burst-1, burst-2",
}


@pytest.mark.parametrize("stack", NODES)
def test_a_job_runs_on_two_nodes_and_nothing_is_left(stack: str, tmp_path: Path) -> None:
    output = run_rehearsal(tmp_path, stack, "--speed", SPEED)
    assert f"the job ran on {NODES[stack]}" in output
    timeline = (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert "denied" not in timeline
    # Their kernel has no Lustre client.
    assert ("restarts" in timeline) is ("FSx filesystem" in timeline)
    assert ("idle GPU nodes: " in output) is (stack != "aws-p5-autoscaled")
    assert list_remains(tmp_path, stack) == []
