"""Rehearsals of the g6 pair: a short one in `make test`, and one with the trainer on both nodes every night."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import RunningRehearsal, list_remains, run_rehearsal

pytestmark = pytest.mark.e2e

STACK = "aws-g6-pair"
ORDER = (
    ("controller", "runs user data"),
    ("gpu-1", "pending"),
    ("gpu-1", "runs user data"),
    ("rehearsal", "teardown"),
    ("gpu-1", "terminated"),
)


def read_moments(home: Path) -> dict[str, float]:
    """Return when each event of the timeline happened last."""
    text = (home / "rehearsals" / STACK / "timeline.txt").read_text()
    lines = re.finditer(r"^ *([\d.]+) s  (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s{2,}", " ", line[2]): float(line[1]) for line in lines}


def check_rehearsal(home: Path, output: str) -> None:
    """Require the order of AWS, no denied call, and that nothing is left in the account or on this machine."""
    assert "ready: controller, up to 2 autoscaled nodes in " in output
    moments = read_moments(home)
    order = [moments[f"{subject} {state}"] for subject, state in ORDER]
    assert order == sorted(order)
    assert not [what for what in moments if "denied" in what]
    folder = home / "rehearsals" / STACK
    assert re.search(r"job \d+ waits for gpu-1, \d+\.\d\d USD billed", (folder / "waits.txt").read_text())
    ElementTree.fromstring((folder / "timeline.svg").read_text())  # noqa: S314  # our own text
    (usd,) = re.findall(r"running bill: ([\d.]+) USD", (folder / "timeline.svg").read_text())
    assert float(usd) > 0
    (receipt,) = (home / "rehearsals" / STACK / "receipts").glob("*.json")
    assert json.loads(receipt.read_text())["left"] == 0
    assert list_remains(home, STACK) == []


def test_a_job_runs_on_a_node_that_slurm_launches(short_rehearsal: RunningRehearsal) -> None:
    output = short_rehearsal.finish()
    assert "the job ran on gpu-1" in output
    check_rehearsal(short_rehearsal.home, output)


@pytest.mark.nightly
def test_the_trainer_runs_on_both_nodes(tmp_path: Path) -> None:
    output = run_rehearsal(tmp_path, STACK, "--speed", "20", "--scenario", "training")
    assert "the trainer did all 40 steps on 2 nodes" in output
    assert "cold start: the job ran " in output
    check_rehearsal(tmp_path, output)
