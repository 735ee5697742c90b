"""The node's first process on a plain cgroup v2 host, which any host can show it: a cgroup2 tree at /sys/fs/cgroup."""

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
MAY_MOUNT, MAY_NOT = "", "setpriv --bounding-set=-sys_admin"


def start(mode: str, drop: str) -> subprocess.CompletedProcess[str]:
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += ["--rm", "--network=none", "--cap-add=SYS_ADMIN", f"--label={names.CLUSTER}=eng{os.getpid()}-entry"]
    script = PLAIN_V2.format(mode=mode, drop=drop)
    return subprocess.run(
        ["docker", "run", *options, names.IMAGE, "sh", "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("mode", "drop"), [("ro", MAY_MOUNT), ("rw", MAY_MOUNT), ("rw", MAY_NOT)])
def test_tree_is_made_writable_where_it_is_not_yet(mode: str, drop: str) -> None:
    done = start(mode, drop)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("systemd would start, rw")


def test_tree_that_stays_read_only_is_named_with_its_fix() -> None:
    done = start("ro", MAY_NOT)
    assert done.returncode == 1
    message = "muster-entry: /sys/fs/cgroup cannot be mounted writable, so systemd cannot start. Fix: allow the mount"
    assert message in done.stderr
    assert "systemd would start" not in done.stdout
