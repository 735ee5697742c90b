"""What a cluster must not lose: the queue with its controller's container, and kept storage with the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.harness import Spec, Stack, small_spec

# Four runs of `up` take longer than the other tests of this layer.
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def stack(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    groups = {"cpu": {"count": 1, "size": {"cpus": 1, "memory_mb": 1024}}}
    stack = make_stack("keeps", small_spec(groups=groups, login={"enabled": False}, storage={"shared": {}}))
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    assert stack.exists() == []


def test_a_new_controller_has_queue_job_ids_and_accounts(stack: Stack) -> None:
    finished = stack.ssh("controller", "cd ~ && sbatch --parsable --wait --wrap hostname")
    job = stack.ssh("controller", "cd ~ && sbatch --parsable --hold --job-name=waits --wrap hostname")
    stack.ssh("controller", "sacctmgr -i add account physics description=lab organization=lab", user="root")
    before = stack.machine_ids()
    # Slurm writes its queue seconds after a change.
    stack.ssh("controller", "sleep 10")
    stack.container("controller").remove(force=True, v=True)
    stack.up()
    after = stack.machine_ids()
    assert (after["controller"] != before["controller"], after["cpu-1"]) == (True, before["cpu-1"])
    assert stack.ssh("controller", "squeue -h -o '%i %j %T %r'") == f"{job} waits PENDING JobHeldUser"
    assert "physics" in stack.ssh("controller", "sacctmgr -nP list account format=account")
    assert stack.ssh("controller", f"sacct -nXP -j {finished} -o state") == "COMPLETED"
    stack.ssh("controller", f"scontrol release {job}")
    later = stack.ssh("controller", "cd ~ && sbatch --parsable --wait --wrap hostname")
    assert int(later) > int(job)


def test_storage_is_kept_by_teardown_and_used_by_the_next_up(stack: Stack) -> None:
    stack.ssh("controller", "echo 'from the first cluster' >~/note")
    receipt = stack.muster("teardown", "--yes", "--force").stdout
    volume = f"muster-{stack.cluster}-shared"
    assert re.search(rf"kept \(keep: true\).*{volume}.*\d MB", receipt)
    assert f"make teardown DELETE_STORAGE=1 STACK={stack.name}" in receipt
    assert stack.exists() == [volume]
    stack.up()
    assert stack.ssh("controller", "cat ~/note") == "from the first cluster"
    assert "cpu-1" in stack.ssh("controller", "cd ~ && srun hostname")
