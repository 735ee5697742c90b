"""Growth and change on a live cluster: what is not changed is not touched, and a running job goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness import Spec, Stack, small_spec, wait_until


@pytest.fixture(scope="module")
def growing(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    stack = make_stack("grow", small_spec())
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


def resize(stack: Stack, count: int) -> None:
    stack.spec["groups"]["gpu"]["count"] = count


def job_state(stack: Stack, job: str) -> str:
    return stack.ssh("login", f"squeue -h -j {job} -o %T 2>/dev/null || true")


def invocation(stack: Stack, node: str) -> str:
    """Changes when systemd restarts slurmd; the process id also does when slurmd renews itself for a reconfigure."""
    return stack.ssh(node, "systemctl show -p InvocationID --value slurmd", user="root")


def start_on_last_node(stack: Stack) -> str:
    """A job that happens to run on gpu-4, and would run anywhere."""
    stack.ssh("controller", "scontrol update nodename=gpu-[1-3] state=drain reason=test", user="root")
    job = stack.ssh("login", "cd ~ && sbatch --parsable -p gpu -N1 --wrap 'srun sleep 1800'")
    wait_until(lambda: job_state(stack, job) == "RUNNING", f"job {job} runs")
    stack.ssh("controller", "scontrol update nodename=gpu-[1-3] state=resume", user="root")
    return job


def start_job(stack: Stack, nodes: str) -> str:
    job = stack.ssh(
        "login", f"cd ~ && sbatch --parsable -p gpu -w {nodes} -N{nodes.count(',') + 1} --wrap 'srun sleep 1800'"
    )
    wait_until(lambda: job_state(stack, job) == "RUNNING", f"job {job} runs")
    return job


def test_growth_adds_two_nodes_and_touches_no_other(growing: Stack) -> None:
    before, job = growing.machine_ids(), start_job(growing, "gpu-1,gpu-2")
    daemons = {node: invocation(growing, node) for node in ("gpu-1", "gpu-2")}
    resize(growing, 4)
    growing.up()
    after = growing.machine_ids()
    assert set(after) - set(before) == {"gpu-3", "gpu-4"}
    assert {name: after[name] for name in before} == before
    assert job_state(growing, job) == "RUNNING"
    assert growing.ssh("login", f"scontrol show job {job} | grep -o Restarts=0") == "Restarts=0"
    assert {node: invocation(growing, node) for node in daemons} == daemons
    growing.ssh("login", f"scancel {job}")
    assert growing.ssh("login", "srun -p gpu -N4 hostname | sort").splitlines() == ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


@pytest.mark.nightly
def test_shrinking_is_refused_while_a_job_runs_there_and_nothing_changes(growing: Stack) -> None:
    job = start_on_last_node(growing)
    before = growing.machine_ids()
    resize(growing, 2)
    done = growing.up(check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "gpu-4" in output
    assert job in output
    assert "FORCE=1" in output or "--force" in output
    assert growing.machine_ids() == before
    assert job_state(growing, job) == "RUNNING"
    assert growing.ssh("login", "sinfo -h -N -n gpu-3 -o %T").splitlines()[0] == "idle"


@pytest.mark.nightly
def test_forced_shrinking_drains_the_nodes_requeues_the_job_and_keeps_the_others(growing: Stack) -> None:
    before, job = growing.machine_ids(), growing.ssh("login", "squeue -h -w gpu-4 -o %A")
    drains = times_drained(growing, "gpu-3")
    resize(growing, 2)
    growing.up("--force")
    assert times_drained(growing, "gpu-3") == drains + 1
    assert growing.machine_ids() == {n: i for n, i in before.items() if n not in ("gpu-3", "gpu-4")}
    assert growing.ssh("login", "sinfo -h -N -o %N | sort").splitlines() == ["gpu-1", "gpu-2"]
    wait_until(lambda: job_state(growing, job) == "RUNNING", f"job {job} runs again on a node that stayed")
    assert growing.ssh("login", f"scontrol show job {job} | grep -o Restarts=1") == "Restarts=1"
    growing.ssh("login", f"scancel {job}")


def times_drained(stack: Stack, node: str) -> int:
    log = "/var/log/slurm/slurmctld.log"
    return int(stack.ssh("controller", f"grep -c 'node {node} state set to DRAIN' {log} || true", user="root"))


def test_a_forbidden_change_is_refused_before_anything_changes(growing: Stack) -> None:
    """One field, end to end; tests/infra/test_update_policy.py has the others."""
    before, spec = growing.machine_ids(), growing.spec
    growing.spec = spec | {"users": {"muster": {"uid": 3000}}}
    try:
        done = growing.up(check=False)
    finally:
        growing.spec = spec
    assert done.returncode != 0
    assert "users.muster.uid" in done.stdout + done.stderr
    assert growing.machine_ids() == before


def test_a_new_user_is_added_without_replacing_anything(growing: Stack) -> None:
    before = growing.machine_ids()
    growing.spec["users"] = {"muster": {"uid": 2000}, "carol": {"uid": 2003}}
    growing.up()
    assert growing.machine_ids() == before
    assert growing.ssh("login", "srun -p gpu -N2 id -un", user="carol").splitlines() == ["carol", "carol"]


def test_a_user_whose_job_runs_is_not_removed(growing: Stack) -> None:
    job = growing.ssh("login", "cd ~ && sbatch --parsable -p gpu -N1 --wrap 'srun sleep 1800'", user="carol")
    wait_until(lambda: job_state(growing, job) == "RUNNING", f"job {job} runs")
    users = growing.spec["users"]
    growing.spec["users"] = {"muster": users["muster"]}
    try:
        done = growing.up(check=False)
    finally:
        growing.spec["users"] = users
    assert done.returncode != 0
    assert f"user carol would be removed but is running job {job}" in " ".join((done.stdout + done.stderr).split())
    assert job_state(growing, job) == "RUNNING"
    growing.ssh("login", f"scancel {job}", user="carol")


@pytest.mark.nightly
def test_a_stopped_daemon_is_started_again(growing: Stack) -> None:
    growing.ssh("gpu-1", "systemctl disable --now slurmd", user="root")
    growing.up()
    assert growing.ssh("gpu-1", "systemctl is-active slurmd", user="root") == "active"


@pytest.mark.nightly
def test_two_stacks_side_by_side_do_not_meet(growing: Stack, cluster: Stack) -> None:
    ours, theirs = ({n["name"]: n["address"] for n in stack.inventory["nodes"]} for stack in (growing, cluster))
    networks = [{address.rsplit(".", 1)[0] for address in addresses.values()} for addresses in (ours, theirs)]
    assert networks[0].isdisjoint(networks[1])
    assert growing.ssh("controller", "getent hosts cpu-1 || echo unknown", user="root") == "unknown"
    assert growing.ssh("controller", "sinfo -h -N -o %N").splitlines() == ["gpu-1", "gpu-2"]
    seen = cluster.ssh("controller", "getent ahostsv4 gpu-1", user="root").split()[0]
    assert seen == theirs["gpu-1"] != ours["gpu-1"]
    reach = f"timeout 2 bash -c '</dev/tcp/{ours['gpu-1']}/22' 2>/dev/null && echo reached || echo cut"
    assert cluster.ssh("controller", reach, user="root") == "cut"
