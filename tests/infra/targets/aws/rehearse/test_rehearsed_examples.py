"""Rehearsals of the other examples: up, a job on two nodes, teardown, nothing left on this machine.

One of them runs a job on 16 nodes: each is a container of this machine.
"""

from __future__ import annotations

import re
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
# Launched after the controller, they cost so much less before they can run a job. Those of `aws-full` do not: their
# own image has no Lustre client, so that they restart, and a machine with eight GPUs takes minutes to boot.
LEAST_IDLE_CUT = {"aws-p5en-lustre": 80, "aws-existing-vpc": 80, "aws-full": 50}
MANY_NODES = 16


@pytest.mark.parametrize("stack", NODES)
def test_a_job_runs_on_two_nodes_and_nothing_is_left(stack: str, tmp_path: Path) -> None:
    output = run_rehearsal(tmp_path, stack, "--speed", SPEED)
    assert f"the job ran on {NODES[stack]}" in output
    timeline = (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert "denied" not in timeline
    # Their kernel has no Lustre client.
    assert ("restarts" in timeline) is ("FSx filesystem" in timeline)
    cut = re.search(r"^idle GPU nodes: .*, (\d+)% less$", output, re.MULTILINE)
    assert (cut is not None) is (stack in LEAST_IDLE_CUT), output
    if cut:
        assert int(cut[1]) >= LEAST_IDLE_CUT[stack]
    assert list_remains(tmp_path, stack) == []


def test_slurm_launches_many_nodes_for_one_job(tmp_path: Path) -> None:
    stack = "aws-p5-autoscaled"
    output = run_rehearsal(tmp_path, stack, "--speed", SPEED, "--nodes", str(MANY_NODES))
    (hosts,) = re.findall(r"^the job ran on (.+)$", output, re.MULTILINE)
    assert set(hosts.split(", ")) == {f"h100-{number + 1}" for number in range(MANY_NODES)}
    assert "denied" not in (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert list_remains(tmp_path, stack) == []
