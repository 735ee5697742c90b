"""`muster status` and `muster ssh` on a running cluster."""

from __future__ import annotations

from tests.harness import Stack


def test_status_shows_nodes_queue_health_and_cost(cluster: Stack) -> None:
    job = cluster.ssh("login", "sbatch --parsable -p cpu -J waiting --wrap 'sleep 600'")
    try:
        out = cluster.muster("status").stdout
    finally:
        cluster.ssh("login", f"scancel {job}")
    for node in ("controller", "login", "gpu-1", "gpu-2", "cpu-1"):
        assert node in out
    assert "waiting" in out
    assert "idle" in out
    assert "0.00" in out or "free" in out.lower() or "no cost" in out.lower()


def test_ssh_runs_a_command_as_the_first_user(cluster: Stack) -> None:
    assert cluster.muster("ssh", "login", "--", "id", "-un").stdout.strip() == "alice"
    assert cluster.muster("ssh", "gpu-1", "--", "hostname").stdout.strip() == "gpu-1"


def test_ssh_to_an_unknown_node_names_the_existing_ones(cluster: Stack) -> None:
    done = cluster.muster("ssh", "gpu-9", check=False)
    assert done.returncode == 2
    assert "gpu-9" in done.stderr + done.stdout
    assert "gpu-1" in done.stderr + done.stdout
