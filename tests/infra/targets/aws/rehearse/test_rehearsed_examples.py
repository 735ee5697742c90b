"""Rehearsals of the other examples: with static groups, Lustre, a login node, an existing VPC, or 16 nodes.

The scenarios of a stack share a cluster if they can. If one fails, `muster rehearse --scenario` repeats it alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import find_passed, list_remains, run_rehearsal

TIMEOUT_S = 3600

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(TIMEOUT_S + 300)]

SCENARIOS = [
    ("aws-p5en-lustre", ("job", "dead-node", "dead-controller", "resize")),
    ("aws-p5en-lustre", ("image-refresh",)),
    ("aws-existing-vpc", ("job", "resize")),
    ("aws-p5-autoscaled", ("job", "dead-node")),
    ("aws-full", ("job",)),
]
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


@pytest.mark.parametrize(
    ("stack", "scenarios"), SCENARIOS, ids=lambda value: value if isinstance(value, str) else ",".join(value)
)
def test_scenarios_hold_and_nothing_is_left(stack: str, scenarios: tuple[str, ...], tmp_path: Path) -> None:
    output = run_rehearsal(tmp_path, stack, "--speed", "20", "--scenario", ",".join(scenarios), timeout_s=TIMEOUT_S)
    assert "rehearsed in " in output
    assert len(scenarios) == 1 or find_passed(output) == list(scenarios)
    timeline = (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert "denied" not in timeline
    if "job" in scenarios:
        check_job(stack, output, timeline)
    assert list_remains(tmp_path, stack) == []


def check_job(stack: str, output: str, timeline: str) -> None:
    """Require that a job ran on two nodes, and that the static ones among them cost little before."""
    assert f"the job ran on {NODES[stack]}" in output
    # Their kernel has no Lustre client.
    assert ("restarts" in timeline) is ("FSx filesystem" in timeline)
    cut = re.search(r"^idle GPU nodes: .*, (\d+)% less$", output, re.MULTILINE)
    assert (cut is not None) is (stack in LEAST_IDLE_CUT), output
    if cut:
        assert int(cut[1]) >= LEAST_IDLE_CUT[stack]


def test_slurm_launches_many_nodes_for_one_job(tmp_path: Path) -> None:
    stack = "aws-p5-autoscaled"
    output = run_rehearsal(tmp_path, stack, "--speed", "30", "--nodes", str(MANY_NODES))
    (hosts,) = re.findall(r"^the job ran on (.+)$", output, re.MULTILINE)
    assert set(hosts.split(", ")) == {f"h100-{number + 1}" for number in range(MANY_NODES)}
    assert "denied" not in (tmp_path / "rehearsals" / stack / "timeline.txt").read_text()
    assert list_remains(tmp_path, stack) == []
