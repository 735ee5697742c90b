"""`python -m bootstrap` with only the files that `up` writes: verify, doctor and apply on a finished cluster."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.test_muster_env import build_wheel
from tests.harness import REPO, Stack

ROOT_KEYS = "sha256sum /root/.ssh/authorized_keys"


def bootstrap(stack: Stack, command: str) -> subprocess.CompletedProcess[str]:
    env, folder = stack.environment(), stack.home / stack.name
    spec = f"{env['MUSTER_STACKS']}/Pulumi.{stack.name}.yaml"
    files = ["--inventory", str(folder / "inventory.json"), "--key", str(folder / "id_ed25519"), "--spec", spec]
    return subprocess.run(
        [sys.executable, "-m", "bootstrap", command, *files],
        env=env, cwd=REPO, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def count_nodes(stack: Stack) -> int:
    """Return the number of nodes: the controller, the login node and those of every group."""
    return 2 + sum(group["count"] for group in stack.spec["groups"].values())


@pytest.fixture
def linked_root_keys(cluster: Stack) -> Iterator[str]:
    """Replace alice's authorized_keys with a link to root's; yield the checksum of root's file."""
    cluster.ssh("login", "cd ~/.ssh && mv authorized_keys original && ln -s /root/.ssh/authorized_keys .", user="alice")
    yield cluster.ssh("controller", ROOT_KEYS, user="root")
    cluster.ssh("login", "cd ~/.ssh && mv -f original authorized_keys", user="alice")


def test_verify_passes_on_a_finished_cluster(cluster: Stack) -> None:
    done = bootstrap(cluster, "verify")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith(f"verified on {count_nodes(cluster)} nodes: daemons, configuration, clock, names")


@pytest.mark.nightly
def test_doctor_finds_no_differences_on_a_finished_cluster(cluster: Stack) -> None:
    done = bootstrap(cluster, "doctor")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "differs from the stack file" not in done.stdout
    assert done.stdout.startswith(f"verified on {count_nodes(cluster)} nodes")


def test_apply_changes_nothing_and_prints_the_table(cluster: Stack) -> None:
    done = bootstrap(cluster, "apply")
    assert done.returncode == 0, done.stdout
    assert f"0 changes on {count_nodes(cluster)} nodes" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert any(row[:3] == ["step", "controller", "login"] for row in rows)
    assert any(row[:2] == ["hosts", "ok"] for row in rows)


def test_doctor_reports_a_difference_and_changes_nothing(cluster: Stack) -> None:
    cluster.ssh("gpu-2", "echo '# mine' >> /etc/default/slurmd", user="root")
    try:
        done = bootstrap(cluster, "doctor")
        assert done.returncode == 1
        assert "gpu-2 differs from the stack file (compute): write /etc/default/slurmd" in done.stdout
        assert cluster.ssh("gpu-2", "tail -n 1 /etc/default/slurmd", user="root") == "# mine"
    finally:
        cluster.ssh("gpu-2", "sed -i '$d' /etc/default/slurmd", user="root")


def test_root_does_not_follow_a_link_in_a_home(cluster: Stack, linked_root_keys: str) -> None:
    done = bootstrap(cluster, "apply")
    assert done.returncode == 1
    assert "step ssh" in done.stdout
    assert cluster.ssh("controller", ROOT_KEYS, user="root") == linked_root_keys


@pytest.mark.nightly
def test_jobs_on_all_nodes_can_import_a_package_that_a_user_added(cluster: Stack, tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "tinypart", "1.0", requires="torch", script=True)
    data = base64.b64encode(wheel.read_bytes()).decode()
    # Without </dev/null, srun would consume the following lines of this script.
    script = f"""set -eu
        echo {data} | base64 -d >~/{wheel.name}
        PIP_NO_INDEX=1 /shared/muster/bin/muster-env add ~/{wheel.name}
        source ~/.muster/env/bin/activate
        srun -N2 -p gpu python -c 'import tinypart, torch; print(tinypart.VERSION, torch.__file__[8:11])' </dev/null
        srun -N2 -p gpu tinypart-launch </dev/null
        torchrun --help | head -n 1
        /shared/muster/bin/muster-env remove tinypart
        rm -r ~/.muster ~/{wheel.name}"""
    lines = cluster.ssh("login", script, user="alice").splitlines()
    assert lines[0].endswith(": tinypart==1.0")
    assert lines[2:4] == ["1.0 env"] * 2
    assert lines[4] == lines[5]
    assert "/alice/.muster/envs/" in lines[4]
    assert lines[6].startswith("usage:")
    assert lines[7] == "muster-env: removed: tinypart"
