"""A compiled training step on one GPU node in a real account, for `make test-aws ARGS=--gpu`.

Every night test_gpu_mode.py rehearses it, without a GPU and therefore without compiling.
"""

from __future__ import annotations

import pytest

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


@pytest.fixture(scope="module")
def stack(make_stack: MakeStack) -> CloudStack:
    return make_stack(STACK, **gpu_spec_changes())


def test_a_compiled_step_trains_on_the_gpu_and_nothing_is_left(stack: CloudStack) -> None:
    before = list_resources(stack.cloud)
    assert "ready: controller, up to 1 autoscaled node" in stack.up()
    settings = [f"steps={STEPS}", *choose_training()]
    output = stack.muster("submit", "--nodes", "1", "slurm/jobs/train.sbatch", "tiny-llama", *settings)
    assert f"step {STEPS}/{STEPS}" in output
    assert "==> /var/log/slurm/slurmd.log <==" in stack.muster("logs", "gpu-1")
    assert f"nothing of cluster {GPU_CLUSTER} is left" in stack.teardown()
    assert search.find_leftovers(GPU_CLUSTER, stack.cloud.region) == Leftovers([])
    assert list_resources(stack.cloud) - before == set()
