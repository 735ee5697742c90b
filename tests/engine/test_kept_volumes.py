"""Volumes that outlive machines: storage with `keep: true` a teardown, the controller's state a lost container."""

from __future__ import annotations

import docker
import pytest

from infra.targets.local.build.cluster import STATE_FOLDERS
from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines

SIZE = {"cpus": 1, "memory_mb": 512}


@pytest.fixture(scope="module")
def machines(make: MakeMachines) -> Machines:
    machines = make("keeps", groups={"cpu": {"count": 1, "size": SIZE}}, storage={"shared": {}})
    machines.up()
    return machines


def test_a_new_controller_has_the_state_of_the_last(machines: Machines) -> None:
    for folder in STATE_FOLDERS.values():
        machines.run("controller", f"echo before >{folder}/note && chown slurm {folder}/note")
    owners = {folder: machines.run("controller", f"stat -c %U {folder}") for folder in STATE_FOLDERS.values()}
    assert owners == {"/var/lib/slurm/slurmctld": "slurm", "/var/lib/mysql": "mysql"}
    before = machines.containers()
    docker.APIClient().remove_container(before["controller"][0], force=True, v=True)
    machines.up()
    after = machines.containers()
    assert (after["controller"][0] != before["controller"][0], after["cpu-1"]) == (True, before["cpu-1"])
    for folder in STATE_FOLDERS.values():
        assert machines.run("controller", f"cat {folder}/note; stat -c %U {folder}/note") == "before\nslurm"
    assert machines.run("cpu-1", f"grep -cE ' ({'|'.join(STATE_FOLDERS.values())}) ' /proc/mounts || true") == "0"


def test_kept_storage_is_used_by_the_next_cluster(machines: Machines) -> None:
    machines.run("cpu-1", "echo mine >/shared/note")
    machines.pulumi("destroy", "--yes", "--skip-preview", "--exclude-protected")
    assert machines.leftovers() == [f"volume muster-{machines.spec['name']}-shared"]
    machines.up()
    assert machines.run("cpu-1", "cat /shared/note") == "mine"
    assert machines.run("controller", "ls /var/lib/slurm/slurmctld /var/lib/mysql | grep -c note || true") == "0"


@pytest.mark.nightly
def test_storage_that_is_no_longer_kept_is_destroyed(machines: Machines) -> None:
    machines.spec["storage"] = {"shared": {"keep": False}}
    machines.up()
    machines.destroy()
    assert machines.leftovers() == []
