"""The Slurm cluster that `up` creates: names, users, limits, accounting, GPUs, and access to root."""

from __future__ import annotations

import json
import subprocess

import pytest
import testinfra

from tests.harness import REPO, Stack

COMPUTE = ("gpu-1", "gpu-2", "cpu-1", "cpu-2", "cpu-3")
NODES = ("controller", "login", *COMPUTE)


def test_ready_names_every_node_of_every_group(cluster: Stack) -> None:
    ready = json.loads(cluster.muster("output", "ready").stdout)
    assert sorted(ready["nodes"]) == sorted(COMPUTE)
    assert sorted(ready["groups"]) == ["cpu", "gpu"]


@pytest.mark.parametrize("node", NODES)
def test_only_the_daemons_of_its_role_run_on_a_node(cluster: Stack, node: str) -> None:
    host = testinfra.get_host(f"docker://muster-{cluster.cluster}-{node}")
    expected = {
        "controller": {"slurmctld", "slurmdbd", "mariadb"},
        "login": {"sackd"},
    }.get(node, {"slurmd"})
    for unit in ("slurmctld", "slurmdbd", "mariadb", "sackd", "slurmd"):
        service = host.service(unit)
        assert service.is_running == (unit in expected), f"{unit} on {node}"
        assert service.is_enabled == (unit in expected), f"{unit} on {node}"
    assert host.service("ssh").is_running


@pytest.mark.attack(5)
@pytest.mark.parametrize("node", NODES)
def test_the_authentication_key_is_readable_by_slurm_only(cluster: Stack, node: str) -> None:
    key = testinfra.get_host(f"docker://muster-{cluster.cluster}-{node}").file("/etc/slurm/slurm.key")
    assert key.mode == 0o600
    assert key.user == "slurm"
    assert key.size == 1024


def test_partitions_are_the_groups_and_all_nodes_are_idle(cluster: Stack) -> None:
    lines = cluster.ssh("login", "sinfo -h -N -o '%N %R %T' | sort").splitlines()
    assert lines == [f"{node} {node.partition('-')[0]} idle" for node in sorted(COMPUTE)]


@pytest.mark.parametrize("node", NODES)
def test_names_resolve_both_ways_on_every_node(cluster: Stack, node: str) -> None:
    addresses = {n["name"]: n["address"] for n in cluster.inventory["nodes"]}
    script = "\n".join(
        f"getent ahostsv4 {name} | awk 'NR==1{{print $1}}'; getent hosts {ip} | awk '{{print $2}}'"
        for name, ip in addresses.items()
    )
    answers = cluster.ssh(node, script, user="root").splitlines()
    assert answers == [part for name, ip in addresses.items() for part in (ip, name)]


def test_a_file_in_shared_is_visible_on_every_node(cluster: Stack) -> None:
    cluster.ssh("login", "echo visible > ~/everywhere")
    for node in COMPUTE:
        assert cluster.ssh(node, "cat /shared/home/alice/everywhere", user="root") == "visible"


@pytest.mark.parametrize(("gpus", "devices"), [("1", "0"), ("2", "0,1")])
def test_simulated_gpus_are_scheduled(cluster: Stack, gpus: str, devices: str) -> None:
    out = cluster.ssh("login", f"srun -p gpu -N2 --gpus-per-node={gpus} bash -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert out.splitlines() == [devices, devices]


def test_a_request_for_more_gpus_than_a_node_has_is_rejected(cluster: Stack) -> None:
    assert "not available" in cluster.ssh("login", "srun -p gpu -N1 --gpus-per-node=3 true 2>&1 || true")


def test_jobs_run_as_the_user_who_submitted_them(cluster: Stack) -> None:
    assert cluster.ssh("login", "srun -p gpu -N2 id -un").splitlines() == ["alice", "alice"]
    assert cluster.ssh("login", "srun -p gpu -N1 id -u") == "2001"


def test_only_users_with_a_qos_can_use_it(cluster: Stack) -> None:
    cluster.ssh("controller", "sacctmgr -i add qos urgent preempt=normal", user="bob")
    urgent_job = "srun -p cpu -N1 --qos=urgent echo ran 2>&1 || true"
    try:
        assert "Invalid qos" in cluster.ssh("login", urgent_job)
        cluster.ssh("controller", "sacctmgr -i modify user alice set qos+=urgent", user="bob")
        assert cluster.ssh("login", urgent_job) == "ran"
    finally:
        cluster.ssh("controller", "sacctmgr -i remove qos urgent", user="bob")


def test_a_step_sees_only_the_cpus_it_requested(cluster: Stack) -> None:
    assert cluster.ssh("login", "srun -p gpu -N1 -n1 -c1 nproc") == "1"


@pytest.mark.fault(33)
def test_a_job_over_its_memory_limit_is_killed_and_recorded(cluster: Stack) -> None:
    eat = "srun -p gpu -N1 --mem=200M python3 -c 'x = b\"x\" * 600_000_000' 2>&1 || true"
    assert "oom" in cluster.ssh("login", eat).lower()
    states = cluster.ssh("login", "sleep 2; sacct -X -n -P -o State -S now-10minutes")
    assert "OUT_OF_MEMORY" in states


def test_no_process_of_a_job_outlives_it(cluster: Stack) -> None:
    cluster.ssh("login", "srun -p cpu -N1 bash -c 'setsid sleep 987 & sleep 0.2'")
    assert cluster.ssh("cpu-1", "sleep 1; pgrep -f 'sleep 987' || true", user="root") == ""


def test_users_can_ssh_between_the_nodes_of_a_job_without_a_prompt(cluster: Stack) -> None:
    hop = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes gpu-2 hostname"
    assert cluster.ssh("login", f"srun -p gpu -w gpu-1,gpu-2 -N2 bash -c '[ $SLURM_PROCID != 0 ] || {hop}'") == "gpu-2"


@pytest.mark.attack(5)
def test_every_node_has_its_own_host_key_and_machine_id(cluster: Stack) -> None:
    keys = {n["host_key"] for n in cluster.inventory["nodes"]}
    ids = {cluster.ssh(n, "cat /etc/machine-id", user="root") for n in NODES}
    assert len(keys) == len(ids) == len(NODES)


def test_only_admins_can_use_sudo(cluster: Stack) -> None:
    assert "sudo" in cluster.ssh("login", "sudo -n id -u 2>&1 || true")
    assert cluster.ssh("login", "sudo -n id -u", user="bob") == "0"


def test_password_logins_are_rejected(cluster: Stack) -> None:
    login = next(n for n in cluster.inventory["nodes"] if n["role"] == "login")
    options = [
        "-o",
        "PubkeyAuthentication=no",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "BatchMode=yes",
    ]
    done = subprocess.run(["ssh", *options, f"alice@{login['address']}", "true"], text=True, capture_output=True)
    assert done.returncode == 255
    assert "publickey" in done.stderr
    assert "password" not in done.stderr


def test_jobs_get_the_fabric_environment_of_their_node(cluster: Stack) -> None:
    seen = cluster.ssh("login", "srun -p gpu -N1 bash -c 'echo $NCCL_NET $GLOO_SOCKET_IFNAME'")
    assert seen == "Socket eth0"
    overridden = cluster.ssh("login", "GLOO_SOCKET_IFNAME=mine srun -p gpu -N1 bash -c 'echo $GLOO_SOCKET_IFNAME'")
    assert overridden == "mine"


def test_a_second_up_reports_that_nothing_changes(cluster: Stack) -> None:
    before = cluster.machine_ids()
    out = cluster.up().stdout
    assert "nothing to change" in out.lower()
    assert cluster.machine_ids() == before


def test_a_second_bootstrap_changes_nothing(cluster: Stack) -> None:
    done = cluster.muster("bootstrap")
    assert "0 changes on 7 nodes" in done.stdout


def test_the_state_has_no_secrets_in_plain_text(cluster: Stack) -> None:
    key = (cluster.home / "e2e" / "id_ed25519").read_text().splitlines()[1]
    state = "".join(f.read_text() for f in (cluster.home / "state").rglob("*.json"))
    assert "muster" in state
    assert key not in state
    assert "BEGIN OPENSSH" not in state


def test_the_tracked_stack_file_is_not_changed(cluster: Stack) -> None:
    assert "encryptionsalt" not in (cluster.home / "stacks" / "Pulumi.e2e.yaml").read_text()
    assert subprocess.run(["git", "-C", str(REPO), "diff", "--quiet", "--", "stacks"]).returncode == 0
