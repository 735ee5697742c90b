"""Calibration as a job on a real cluster: the profile it leaves predicts a run on the same nodes.

How close predictions are is measured by benchmarks/simulator_cluster.py, not here. Every day,
tests/trainer/test_calibrate.py measures and predicts without a cluster.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulator_cluster import calibrate, fast_step_s, predict_step_s, train
from tests.harness import Stack

NODES, RANKS_PER_NODE = 2, 2
# Far outside the error on an idle machine, but a unit or a factor of ranks that went wrong is still seen.
MAX_RATIO = 8


@pytest.mark.nightly
def test_a_profile_from_a_job_predicts_a_run_on_the_same_nodes(cluster: Stack, tmp_path: Path) -> None:
    profile = calibrate(cluster, NODES, RANKS_PER_NODE, tmp_path)
    run = train(cluster, NODES, RANKS_PER_NODE, tmp_path)
    predicted, measured = predict_step_s(run, profile, NODES, RANKS_PER_NODE), fast_step_s(run)
    assert 1 / MAX_RATIO < predicted / measured < MAX_RATIO
