"""Changes that are not possible fail with a readable error and its fix, and leave nothing half-created."""

from __future__ import annotations

import socket

import docker
import pytest

from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines

LOGIN_SIZE = {"cpus": 1, "memory_mb": 512}


@pytest.fixture(scope="module")
def first(make: MakeMachines) -> Machines:
    machines = make("first", groups={"gpu": {"count": 1, "size": LOGIN_SIZE}})
    machines.up()
    return machines


def test_cluster_name_of_another_stack_is_an_error(first: Machines, make: MakeMachines) -> None:
    before = first.leftovers()
    second = make("second", name=first.spec["name"])
    output = second.up(check=False)
    assert f"{first.spec['name']} is in use" in output
    assert "belongs to stack first, not to stack second" in output
    assert "make teardown STACK=first" in output
    assert first.leftovers() == before


@pytest.mark.nightly
def test_same_stack_of_another_home_is_an_error_and_changes_nothing(first: Machines, make: MakeMachines) -> None:
    before, left = first.containers(), first.leftovers()
    second = make("first", name=first.spec["name"], groups=first.spec["groups"])
    assert second.home != first.home
    output = second.up(check=False)
    assert f"belongs to stack first of another checkout, whose MUSTER_HOME is {first.home}" in output
    assert f"remove the other one with `MUSTER_HOME={first.home} make teardown STACK=first`" in output
    assert second.leftovers() == []
    second.destroy()
    second.remove_by_label()
    assert (first.containers(), first.leftovers()) == (before, left)
    first.up("--expect-no-changes")


@pytest.mark.nightly
def test_outdated_state_does_not_remove_the_cluster_of_another_home(make: MakeMachines) -> None:
    """The first home's cluster was removed outside Pulumi, and another home created one with the same name."""
    groups = {"gpu": {"count": 1, "size": LOGIN_SIZE}}
    old = make("reused", groups=groups)
    old.up()
    old.remove_by_label()
    new = make("reused", groups=groups)
    new.up()
    before = (new.containers(), new.leftovers())
    assert "belongs to stack reused of another checkout" in old.up(check=False)
    old.destroy()
    assert (new.containers(), new.leftovers()) == before


def test_address_range_in_use_is_an_error(first: Machines, make: MakeMachines) -> None:
    subnet = docker.APIClient().inspect_network(f"muster-{first.spec['name']}")["IPAM"]["Config"][0]["Subnet"]
    second = make("clash", network={"egress": False, "cidr": subnet})
    output = second.up(check=False)
    assert f"network.cidr: {subnet} is in use: it overlaps the Docker network muster-{first.spec['name']}" in output
    assert "Fix: leave network.cidr out, or set it to a free range, for example 10.88." in output
    assert [left for left in second.leftovers() if not left.startswith("volume")] == []


@pytest.mark.nightly
def test_port_in_use_is_an_error_and_leaves_no_login_node(make: MakeMachines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        machines = make(
            "port",
            groups={"gpu": {"count": 1, "size": LOGIN_SIZE}},
            login={"size": LOGIN_SIZE, "ssh_port": port},
            network={"egress": True},
        )
        output = machines.up(check=False)
    assert f"login.ssh_port: {port} is taken on 127.0.0.1. Fix: choose another port" in output
    assert "login" not in machines.containers()
    assert f"container muster-{machines.spec['name']}-login" not in machines.leftovers()
    machines.up()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        assert connection.recv(4) == b"SSH-"


def test_error_names_the_docker_socket_that_does_not_answer(first: Machines) -> None:
    first.env["DOCKER_HOST"] = "unix:///nowhere.sock"
    try:
        output = first.up(check=False)
    finally:
        del first.env["DOCKER_HOST"]
    assert "Docker engine does not answer at" in output
    assert "nowhere.sock. Fix: start it with `make setup`" in output


@pytest.mark.nightly
def test_forbidden_change_fails_before_anything_changes(first: Machines) -> None:
    before = first.containers()
    spec, first.spec = first.spec, first.spec | {"network": {"egress": True}}
    try:
        for output in (first.pulumi("preview", check=False), first.up(check=False)):
            assert "network.egress: cannot change from false to true while the cluster exists" in output
    finally:
        first.spec = spec
    assert first.containers() == before


@pytest.mark.nightly
def test_a_cluster_keeps_its_slurm_if_only_the_default_has_changed(make: MakeMachines) -> None:
    """The cluster has the older release, and its stack file has never named one."""
    older = make("older", groups={"gpu": {"count": 1, "size": LOGIN_SIZE}}, software={"slurm": "24.11"})
    older.up()
    before = older.containers()
    del older.spec["software"]
    for force in ("", "1"):
        older.env["MUSTER_FORCE"] = force
        output = older.up(check=False)
        assert '`up` cannot change the release from "24.11" to "26.05"' in output
        assert 'make upgrade TO=26.05`, or write `software: {slurm: "24.11"}` to keep the present release' in output
    assert older.containers() == before
    older.spec["software"] = {"slurm": "24.11"}
    older.up("--expect-no-changes")


def test_shrinking_without_an_answer_from_slurm_needs_force(first: Machines) -> None:
    """Slurm runs (here, a process with its name), but this machine has no key to query it."""
    api = docker.APIClient()
    controller = f"muster-{first.spec['name']}-controller"
    api.exec_start(api.exec_create(controller, ["bash", "-c", "exec -a slurmctld sleep 600"])["Id"], detach=True)
    first.spec["groups"] = {"gpu": {"count": 0, "size": LOGIN_SIZE}}
    output = first.up(check=False)
    assert "groups: cannot check whether jobs are running on gpu-1" in output
    assert "inventory.json is missing. Fix: if they are idle, run it with `FORCE=1`" in output
    assert set(first.containers()) == {"controller", "gpu-1"}
    first.env["MUSTER_FORCE"] = "1"
    first.up()
    assert set(first.containers()) == {"controller"}
