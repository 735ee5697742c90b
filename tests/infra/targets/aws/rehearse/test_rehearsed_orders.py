"""Rehearsals whose delays are drawn from other seeds every night: whatever comes first, the job runs.

The controller is lost while nodes start, so one rehearsal has the orders of the first `up`, of new nodes, and of a
controller that is replaced. `MUSTER_TEST_SEEDS=20` rehearses 20 seeds, which takes more than an hour.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import list_remains, run_rehearsal
from tests.seeds import check_orders, list_seeds

SEEDS = list_seeds(1)
TIMEOUT_S = 1200

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout((TIMEOUT_S + 300) * len(SEEDS))]

STACK, SCENARIO = "aws-g6-pair", "dead-controller-early"
# Only what AWS decides: between the steps of one machine the order is always the same.
PAIRS = [
    ("EFS mount target muster-pair-shared us-east-1a: available", "NAT gateway us-east-1a: available"),
    ("controller agent: registered", "volume: attached to controller"),
    ("gpu-1: boots", "gpu-2: boots"),
    ("gpu-1: runs user data", "gpu-2: runs user data"),
    ("gpu-1: ready", "gpu-2: ready"),
    ("gpu-1 credentials: available", "gpu-2: runs user data"),
    ("gpu-1: ready", "controller: lost"),
]
DIFFERENT = 18


def read_order(folder: Path) -> list[str]:
    """Return the events of a timeline in their order, without the ids that AWS gives."""
    lines = re.finditer(r"^ *[\d.]+ s  (.+?)  +(.+)$", (folder / "timeline.txt").read_text(), re.MULTILINE)
    return [f"{re.sub('^vol-.*', 'volume', line[1])}: {line[2]}" for line in lines]


def test_the_job_runs_whatever_comes_first(tmp_path: Path) -> None:
    orders = {}
    for seed in SEEDS:
        home = tmp_path / str(seed)
        home.mkdir()
        options = ("--speed", "30", "--scenario", SCENARIO, "--seed", str(seed))
        assert "rehearsed in " in run_rehearsal(home, STACK, *options, timeout_s=TIMEOUT_S)
        assert list_remains(home, STACK) == []
        orders[seed] = read_order(home / "rehearsals" / STACK)
    check_orders(orders, PAIRS, DIFFERENT)
