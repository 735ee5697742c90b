"""The first process of a node on a plain cgroup v2 host, simulated by a cgroup2 tree at /sys/fs/cgroup."""

from __future__ import annotations

import os
import subprocess

import pytest

from cluster import names
from infra.targets.local.build.node_container import UNCONFINED

PLAIN_V2 = """set -e
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -o remount,bind,{mode} /sys/fs/cgroup
printf '#!/bin/sh\\necho systemd would start, $(findmnt -no OPTIONS /sys/fs/cgroup)\\n' > /tmp/init
ln -sf /tmp/init /sbin/init && chmod +x /tmp/init
exec {drop} /sbin/muster-entry"""
CAN_MOUNT, CANNOT_MOUNT = "", "setpriv --bounding-set=-sys_admin"


def start(mode: str, drop: str) -> subprocess.CompletedProcess[str]:
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += ["--rm", "--network=none", "--cap-add=SYS_ADMIN", f"--label={names.CLUSTER}=eng{os.getpid()}-entry"]
    script = PLAIN_V2.format(mode=mode, drop=drop)
    return subprocess.run(
        ["docker", "run", *options, names.IMAGE, "sh", "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("mode", "drop"), [("ro", CAN_MOUNT), ("rw", CAN_MOUNT), ("rw", CANNOT_MOUNT)])
def test_read_only_tree_is_remounted_writable(mode: str, drop: str) -> None:
    done = start(mode, drop)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("systemd would start, rw")


def test_tree_that_stays_read_only_is_an_error_with_a_fix() -> None:
    done = start("ro", CANNOT_MOUNT)
    assert done.returncode == 1
    message = "muster-entry: /sys/fs/cgroup cannot be mounted writable, so systemd cannot start. Fix: allow the mount"
    assert message in done.stderr
    assert "systemd would start" not in done.stdout
