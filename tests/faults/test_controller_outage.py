"""The daemons of accounting are stopped: jobs run, and their records arrive later."""

from __future__ import annotations

import time

import pytest

from tests.fault_matrix.times import record
from tests.harness import Stack, wait_until


@pytest.mark.fault(4)
def test_jobs_run_without_the_database_and_their_records_arrive_later(healthy: Stack) -> None:
    healthy.ssh("controller", "systemctl stop slurmdbd mariadb", user="root")
    try:
        job = healthy.ssh(
            "controller", "cd ~ && sbatch --parsable --wait -p gpu -N1 -J without-database --wrap hostname"
        )
        state = read_state(healthy, job)
    finally:
        healthy.ssh("controller", "systemctl start mariadb slurmdbd", user="root")
        began = time.monotonic()
    assert state == "COMPLETED"
    ask = f"sacct -X -n -P -o JobName,State -j {job} 2>/dev/null || true"
    wait_until(lambda: healthy.ssh("controller", ask) == "without-database|COMPLETED", "the record arrives")
    record(4, recover_s=time.monotonic() - began)


def read_state(stack: Stack, job: str) -> str:
    return stack.ssh("controller", f"squeue -h -t all -j {job} -o %T")
