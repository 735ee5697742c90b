"""`muster upgrade` on a running cluster: running jobs, queue and accounting survive, and the backup can be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import docker
import pytest
import yaml

from cluster import names
from tests.harness import Spec, Stack, small_spec, wait_until

pytestmark = pytest.mark.nightly

NEW, OLD = "26.05", "24.11"
# The job writes the time every second, so a gap shows that it was interrupted.
SUBMIT = """cd
cat >job.sh <<'JOB'
#!/bin/bash
until [ -e ~/enough ]; do date +%s >>~/ticks; sleep 1; done
JOB
running=$(sbatch --parsable -N1 -w gpu-1 --mem=100 -c1 -J running --no-requeue job.sh)
sbatch -N1 --mem=100 -J dependent --dependency=afterok:$running --wrap 'touch ~/dependent'
sbatch -N1 --mem=100 -J held --hold --wrap 'touch ~/held'
sbatch -N1 -w gpu-1 --mem=100 --exclusive -J waiting --wrap 'touch ~/waiting'
until [ -s ticks ]; do sleep 0.2; done"""
# The script runs on the first of its nodes, gpu-1, and starts tasks on both.
SUBMIT_ACROSS_NODES = "cd && sbatch --wait -N2 -t1 --mem=100 -J across -o across --wrap 'srun hostname'; sort across"
# A job on a busy machine may lose some seconds, but a job that was started again would lose all.
LONGEST_GAP_S = 30


@pytest.fixture(scope="module")
def upgraded(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    """Return a cluster of the old release; the tests of this file change it in their order."""
    for release in (OLD, NEW):
        assert docker.from_env().images.list(names.image(release)), "run `make setup` first"
    spec = small_spec(software={"slurm": OLD})
    stack = make_stack("upgrade", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.mark.attack(4)
def test_running_jobs_queue_and_accounting_survive(upgraded: Stack) -> None:
    assert "12" in upgraded.ssh("login", "srun -N1 --mem=100 expr 6 + 6 </dev/null")
    upgraded.ssh("login", SUBMIT)
    before = upgraded.machine_ids()

    # As if the file had never named a release, and the default had changed since.
    del upgraded.spec["software"]
    refused = upgraded.up(check=False)
    assert refused.returncode != 0
    assert f"run `make upgrade STACK=upgrade TO={NEW}`, or write `software: " in refused.stderr
    assert _releases(upgraded) == {OLD}

    drill = upgraded.muster("upgrade", "--drill").stdout
    assert "recovered everything on a twin (1 running, 2 waiting and 1 held jobs" in drill
    assert _releases(upgraded) == {OLD}

    upgraded.ssh("gpu-1", "mv /usr/bin/dpkg /usr/bin/dpkg.away", user="root")
    stopped = upgraded.muster("upgrade", "--to", NEW, check=False)
    assert stopped.returncode != 0
    assert "the upgrade stopped: node gpu-1, step node: " in stopped.stderr
    assert f"done: gpu-2: install Slurm {NEW}" in stopped.stderr
    assert "continue with `make upgrade STACK=upgrade`" in stopped.stderr
    # Until it continues, the old and the new release work together.
    assert _releases(upgraded) == {OLD, NEW}
    assert upgraded.ssh("login", "srun -N1 -w gpu-2 --mem=100 hostname </dev/null") == "gpu-2"
    assert upgraded.ssh("login", SUBMIT_ACROSS_NODES).split()[-2:] == ["gpu-1", "gpu-2"]
    upgraded.ssh("gpu-1", "mv /usr/bin/dpkg.away /usr/bin/dpkg", user="root")

    output = upgraded.muster("upgrade", "--to", NEW).stdout
    assert "queue and accounting are complete: 1 running, 2 waiting and 1 held jobs" in output
    assert _releases(upgraded) == {NEW}
    assert upgraded.machine_ids() == before
    file = upgraded.home / "stacks" / f"Pulumi.{upgraded.name}.yaml"
    assert yaml.safe_load(file.read_text())["config"]["muster:cluster"]["software"] == {"slurm": NEW}
    upgraded.spec["software"] = {"slurm": NEW}
    assert "nothing to change" in upgraded.up().stdout


def test_jobs_from_before_the_upgrade_run_to_their_end(upgraded: Stack) -> None:
    upgraded.ssh("login", "touch ~/enough")
    ended = "sacct -X -n -P -o JobName,State,Restarts -S now-1hour | grep -E 'running|dependent|waiting' | sort"
    expected = ["dependent|COMPLETED|0", "running|COMPLETED|0", "waiting|COMPLETED|0"]
    wait_until(lambda: upgraded.ssh("login", ended).splitlines() == expected, "the jobs have ended")
    ticks = [int(line) for line in upgraded.ssh("login", "cat ~/ticks").splitlines()]
    assert max(later - earlier for earlier, later in pairwise(ticks)) < LONGEST_GAP_S
    assert upgraded.ssh("login", "squeue -h -o '%j %r'") == "held JobHeldUser"
    upgraded.ssh("login", "scontrol release $(squeue -h -n held -o %i)")
    wait_until(lambda: upgraded.ssh("login", "ls ~/held 2>/dev/null || true") != "", "the released job has run")


def test_a_lost_node_comes_back_with_the_new_release(upgraded: Stack) -> None:
    upgraded.container("gpu-2").remove(force=True)
    upgraded.up()
    assert _releases(upgraded) == {NEW}
    assert upgraded.container("gpu-2").attrs["Config"]["Image"] == names.image(NEW)


def test_the_backup_can_be_restored(upgraded: Stack) -> None:
    output = upgraded.muster("upgrade", "--back").stdout
    assert f"has Slurm {OLD} again" in output
    assert _releases(upgraded) == {OLD}
    upgraded.spec["software"] = {"slurm": OLD}
    assert "held JobHeldUser" in upgraded.ssh("login", "squeue -h -o '%j %r'").splitlines()
    # To the restored queue, jobs that ended since the backup are still running or waiting.
    upgraded.ssh("login", "scancel -u $USER")
    wait_until(lambda: upgraded.ssh("login", "squeue -h") == "", "the queue is empty")
    assert upgraded.ssh("login", "srun -N2 --mem=100 hostname </dev/null | sort").split() == ["gpu-1", "gpu-2"]


def _releases(stack: Stack) -> set[str]:
    """Return the releases that slurmctld and the nodes run."""
    nodes = stack.ssh("login", "sinfo -h -N -o %v").split()
    controller = stack.ssh("login", "scontrol show config | sed -n 's/^SLURM_VERSION *= *//p'")
    return {version.rpartition(".")[0] for version in (*nodes, controller)}
