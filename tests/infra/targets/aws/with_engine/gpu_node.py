"""A compiled training step on one GPU node in a real account, for `make test-aws ARGS=--gpu`.

Every night test_gpu_mode.py rehearses it, without a GPU and therefore without compiling.
"""

from __future__ import annotations

import time

import pytest

from bootstrap.steps.cloud.logs import FIRST_STORED_S
from infra.targets.aws.leftovers import search
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.target import Leftovers
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.requirements import (
    GPU_CLUSTER,
    STACK,
    choose_training,
    gpu_spec_changes,
)

STEPS = 20
# Storing takes seconds, on a machine with much other work a minute.
STORED_TIMEOUT_S = FIRST_STORED_S + 180


@pytest.fixture(scope="module")
def stack(make_stack: MakeStack) -> CloudStack:
    return make_stack(STACK, **gpu_spec_changes())


def test_a_compiled_step_trains_on_the_gpu_and_nothing_is_left(stack: CloudStack) -> None:
    before = list_resources(stack.cloud)
    assert "ready: controller, up to 1 autoscaled node" in stack.up()
    settings = [f"steps={STEPS}", *choose_training()]
    output = stack.muster("submit", "--nodes", "1", "slurm/jobs/train.sbatch", "tiny-llama", *settings)
    assert f"step {STEPS}/{STEPS}" in output
    assert "==> /var/log/slurm/slurmd.log <==" in read_stored_logs(stack, "gpu-1")
    assert f"nothing of cluster {GPU_CLUSTER} is left" in stack.teardown()
    assert search.find_leftovers(GPU_CLUSTER, stack.cloud.region) == Leftovers([])
    assert list_resources(stack.cloud) - before == set()


def read_stored_logs(stack: CloudStack, node: str) -> str:
    """Return the logs that a node has stored; the training may end before it stores them for the first time."""
    deadline = time.monotonic() + STORED_TIMEOUT_S
    while True:
        code, output = stack.attempt("logs", node)
        if code == 0:
            return output
        assert time.monotonic() < deadline, output
        time.sleep(2)
