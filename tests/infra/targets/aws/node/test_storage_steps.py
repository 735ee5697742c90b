"""Steps for filesystems on AWS: Lustre, EFS and the volume with the controller's state."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.steps import packages
from bootstrap.steps.cloud import disks, lustre_client, mounts, nfs_access
from cluster.inventory import Node
from tests.infra.targets.aws.node.clusters import EFS, KERNEL, LUSTRE, NFS, desired, ubuntu
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU, LOGIN, titles, written

ATTACH = "attach lustre noatime,flock,lazystatfs fs-01.fsx.us-east-1.amazonaws.com@tcp:/abcdef /shared"


def test_the_lustre_client_matches_the_running_kernel_and_is_tuned() -> None:
    assert titles(lustre_client.STEP, ubuntu(), GPU, desired(LUSTRE)) == [
        "write /etc/modprobe.d/muster.conf",
        f"find lustre-client-modules-{KERNEL}",
    ]
    (install,) = packages.STEP.actions(ubuntu(), GPU, desired(LUSTRE))
    assert f"lustre-client-modules-{KERNEL}" in install.script.split()
    script = written(mounts.STEP.actions(ubuntu(), GPU, desired(LUSTRE)), "/etc/muster/mounts")
    assert ATTACH in script.splitlines()
    assert "lctl set_param -n osc.*.max_rpcs_in_flight=64" in script
    other = ubuntu(packages={"lustre-client-modules-6.8.0-1020-aws": "1"})
    assert f"find lustre-client-modules-{KERNEL}" in titles(lustre_client.STEP, other, GPU, desired(LUSTRE))
    with pytest.raises(BootstrapError, match="there is no Lustre client for debian 13"):
        lustre_client.STEP.skip(ubuntu(distribution="debian 13"), GPU, desired(LUSTRE))


def test_lustre_uses_efa_if_filesystem_and_machine_have_it() -> None:
    over_efa = desired(LUSTRE.model_copy(update={"efa": True}))

    def lines(node: Node, target: Desired) -> list[str]:
        return written(mounts.STEP.actions(ubuntu(), node, target), "/etc/muster/mounts").splitlines()

    assert lines(GPU, over_efa).index("use_efa") < lines(GPU, over_efa).index(ATTACH)
    assert "use_efa" not in lines(LOGIN, over_efa)
    assert "use_efa" not in lines(GPU, desired(LUSTRE))


def test_efs_is_mounted_through_tls_with_a_verified_certificate() -> None:
    todo = mounts.STEP.actions(ubuntu(), GPU, desired(NFS, EFS))
    conf = written(todo, "/etc/muster/efs-0.conf")
    assert f"checkHost = {EFS.host}\n" in conf
    assert "verifyChain = yes\n" in conf
    script = written(todo, "/etc/muster/mounts")
    lines = script.splitlines()
    attach = next(line for line in lines if line.endswith(f"port={mounts.FIRST_TUNNEL_PORT} 127.0.0.1:/ /users"))
    wait = lines.index(f"mountpoint -q /users || await_tunnel {mounts.FIRST_TUNNEL_PORT}")
    assert lines.index(attach) == wait + 1
    assert "10.0.0.9:/vol /archive\n" in script


def test_mounting_waits_only_for_a_tunnel_that_does_not_listen(tmp_path: Path) -> None:
    """If it never listens, the filesystem is mounted nevertheless, which shows the error."""
    sleep = tmp_path / "sleep"
    sleep.write_text(f"#!/bin/sh\necho >>{tmp_path}/sleeps\n")
    sleep.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with socket.create_server(("127.0.0.1", 0)) as tunnel, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        for port, sleeps in ((tunnel.getsockname()[1], 0), (silent.getsockname()[1], 100)):
            (tmp_path / "sleeps").write_text("")
            script = mounts.SCRIPT.replace("@MOUNTS@", f"await_tunnel {port}")
            subprocess.run(["sh", "-c", script], env=environment, check=True)
            assert len((tmp_path / "sleeps").read_text()) == sleeps


def test_the_state_volume_is_found_by_id_and_required_by_daemons() -> None:
    todo = disks.STATE_STEP.actions(ubuntu(), CONTROLLER, desired(state_volume="vol-0123"))
    assert "volume=vol-0123\n" in written(todo, "/etc/muster/state")
    for unit in ("mariadb", "slurmctld"):
        assert "Requires=muster-state.service" in written(
            todo, f"/etc/systemd/system/{unit}.service.d/muster-state.conf"
        )
    unit = written(todo, "/etc/systemd/system/muster-state.service")
    assert "Before=mariadb.service slurmdbd.service slurmctld.service slurmd.service\n" in unit
    assert disks.STATE_STEP.roles == ("controller",)


def test_only_root_reaches_nfs_servers_and_tunnels() -> None:
    """The rules are loaded before users can log in and before slurmd starts."""
    second = EFS.model_copy(update={"mount": "/data", "host": "fs-03.efs.us-east-1.amazonaws.com"})
    todo = nfs_access.STEP.actions(ubuntu(), GPU, desired(EFS, second))
    assert "th dport { 2049, 20490, 20491 } jump root_only\n" in written(todo, "/etc/muster/nfs-access")
    unit = written(todo, "/etc/systemd/system/muster-nfs-access.service")
    assert "systemd-user-sessions.service" in unit.partition("Before=")[2].splitlines()[0]
    logins = written(todo, "/etc/systemd/system/systemd-user-sessions.service.d/muster-nfs-access.conf")
    assert logins == "[Unit]\nRequires=muster-nfs-access.service\n"
    drop_in = "/etc/systemd/system/slurmd.service.d/muster-nfs-access.conf"
    assert "ExecStartPre=/etc/muster/nfs-access\n" in written(todo, drop_in)
    assert f"write {drop_in}" not in titles(nfs_access.STEP, ubuntu(), LOGIN, desired(NFS))
    assert nfs_access.STEP.skip(ubuntu(), GPU, desired(LUSTRE)) == "the cluster has no NFS filesystem"
