"""The program that starts containers of jobs, with crun as an ordinary user, in a container of the node image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bootstrap.program import pack_program
from bootstrap.steps.containers import SOURCES, START
from cluster import names
from cluster.spec.model import Software
from infra.targets.local.build.node_container import UNCONFINED
from slurm.containers.installed import PROGRAM, SETTINGS
from tests.harness import REPO
from tests.small_bundle import create_bundle

CLUSTER = f"containers-{os.getpid():x}"
TIMEOUT_S = 60
SCRIPT = "/var/lib/slurm/slurmd/job00012/slurm_script"
PREPARE = f"""
useradd -u 2001 -m alice && groupadd -g 3001 team && usermod -aG team alice
mkdir -p {os.path.dirname(SETTINGS)} {os.path.dirname(SCRIPT)}
echo '{{"mounts": ["/shared", "/absent"]}}' >{SETTINGS}
install -d -m 1777 /shared
echo secret >/shared/of-the-team && chgrp team /shared/of-the-team && chmod 640 /shared/of-the-team
printf '#!/bin/bash\\necho "script $1 in $PWD"\\n' >{SCRIPT}
chmod -R a+rX /var/lib/slurm && chmod a+x {SCRIPT}
{create_bundle("/images/tools")}
for locked in folder rootfs config.json; do cp -a /images/tools /locked-$locked; done
chmod 700 /locked-folder /locked-rootfs/rootfs && chmod 600 /locked-config.json/config.json
mkdir -p /private/bundle && chmod 700 /private
touch /prepared
exec sleep infinity
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Node:
    name: str

    def root(self, script: str) -> str:
        command = ["docker", "exec", "-i", self.name, "bash", "-ec", script]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def task(
        self, *command: str, bundle: str = "/images/tools", folder: str = "/shared", user: str = "alice", **env: str
    ) -> Result:
        """Run a task in a container as alice, or another user."""
        variables = "".join(f"{name}={value}\\0" for name, value in {"HOME": "/shared", **env}.items())
        self.root(f"printf '{variables}' >/environment")
        docker = ["docker", "exec", f"--workdir={folder}", self.name]
        groups = ["--init-groups"] if user == "alice" else ["--clear-groups"]
        setpriv = ["setpriv", f"--reuid={user}", f"--regid={user}", *groups, "--no-new-privs"]
        program = ["/usr/bin/python3", "-IS", PROGRAM, "gpu-1.12.0.0", bundle, "/environment", *command]
        done = subprocess.run([*docker, *setpriv, *program], capture_output=True, text=True, timeout=TIMEOUT_S)
        return Result(done.returncode, done.stdout.strip(), done.stderr.strip())


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    name = f"muster-{CLUSTER}"
    options = [f"--security-opt={option}" for option in UNCONFINED]
    options += [f"--label={names.CLUSTER}={CLUSTER}", "--network=none", "--init", "--cap-add=SYS_ADMIN"]
    options += ["--tmpfs=/tmp:exec,mode=1777,size=16m", "--entrypoint=bash"]
    subprocess.run(
        ["docker", "run", "-d", "--name", name, *options, names.image(Software().slurm), "-ec", PREPARE],
        check=True,
        capture_output=True,
    )
    try:
        node = Node(name)
        node.root("for i in $(seq 300); do [ -e /prepared ] && exit; sleep 0.05; done; exit 1")
        program = pack_program(REPO, SOURCES, START)
        subprocess.run(["docker", "exec", "-i", name, "sh", "-c", f"cat >{PROGRAM}"], input=program, check=True)
        yield node
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)


def test_a_task_runs_in_the_image_as_its_user(node: Node) -> None:
    script = "id -u; id -g; ls -d /MARKER; echo $FROM $HOME $PWD; touch made; cat of-the-team"
    done = node.task("bash", "-c", script, FROM="step")
    assert done == Result(0, "2001\n2001\n/MARKER\nimage /shared /shared\nsecret", "")
    assert node.root("stat -c %U:%G /shared/made") == "alice:alice"
    # The list of users knows the user, although the image has none.
    assert node.task("bash", "-c", "id -un; echo ~alice").out == "alice\n/home/alice"


def test_the_image_cannot_be_changed_and_the_node_is_not_visible(node: Node) -> None:
    done = node.task("bash", "-c", "for f in /usr/bin/x /srv/own/x; do touch $f; done; ls /root /images")
    assert done.code != 0
    assert done.err.count("Read-only file system") == 2
    assert done.err.count("No such file or directory") == 2


def test_a_batch_script_runs_with_its_arguments(node: Node) -> None:
    assert node.task(SCRIPT, "one two") == Result(0, "script one two in /shared", "")


def test_a_task_starts_in_the_images_folder_if_the_container_lacks_its_own(node: Node) -> None:
    assert node.task("bash", "-c", "echo $PWD; ls", folder="/root").out == "/srv/own\nfile"


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_exit_codes_and_signals_are_those_of_the_command(node: Node, script: str, code: int) -> None:
    assert node.task("bash", "-c", script).code == code


def test_signals_reach_the_command(node: Node) -> None:
    trap = "trap 'echo saved; exit 0' USR2; touch /shared/ready; while :; do sleep 0.05; done"
    send = "until [ -e /shared/ready ]; do sleep 0.05; done; pkill -USR2 -f '^crun --root'"
    with subprocess.Popen(["docker", "exec", node.name, "bash", "-c", send]) as sender:
        done = node.task("bash", "-c", trap)
        assert sender.wait() == 0
    assert done == Result(0, "saved", "")


@pytest.mark.parametrize(
    ("bundle", "problem"),
    [
        ("/images/none", "muster: --container=/images/none does not exist; /images has: tools. Fix: `muster image job"),
        ("/images/tools/rootfs", "muster: --container=/images/tools/rootfs is not a bundle: it has no config.json"),
        (
            "/private/bundle",
            "muster: the container cannot be prepared: /private/bundle: Permission denied. Fix: everyth",
        ),
        (
            "/locked-folder",
            "muster: the container cannot be prepared: /locked-folder/config.json: Permission denied. F",
        ),
        (
            "/locked-config.json",
            "muster: the container cannot be prepared: /locked-config.json/config.json: Permission",
        ),
        ("/locked-rootfs", "muster: the container cannot be prepared: /locked-rootfs/rootfs"),
    ],
)
def test_a_container_that_cannot_start_says_why(node: Node, bundle: str, problem: str) -> None:
    done = node.task("true", bundle=bundle)
    assert done.code == 125
    assert done.err.startswith(problem)


def test_a_node_that_cannot_run_containers_says_what_it_lacks(node: Node) -> None:
    node.root("mv /usr/bin/crun /usr/bin/crun.aside")
    try:
        done = node.task("true")
    finally:
        node.root("mv /usr/bin/crun.aside /usr/bin/crun")
    assert done.code == 125
    assert done.err.startswith("muster: crun is not installed on this node. Fix:")


def test_a_node_without_settings_or_that_does_not_know_the_user_says_so(node: Node) -> None:
    node.root(f"mv {SETTINGS} {SETTINGS}.aside")
    try:
        done = node.task("true")
    finally:
        node.root(f"mv {SETTINGS}.aside {SETTINGS}")
    assert done.code == 125
    assert done.err.startswith(f"muster: the node's settings for containers, {SETTINGS}, cannot be read: FileNotFound")
    # On a cluster, each job has a /tmp of its own.
    node.root("rm -rf /tmp/.muster-containers")
    done = node.task("true", user="4242")
    node.root("rm -rf /tmp/.muster-containers")
    assert done.code == 125
    assert done.err.startswith("muster: the node does not know user 4242 or group 4242: ")


def test_a_full_disk_is_named(node: Node) -> None:
    node.root("head -c 16M /dev/zero >/tmp/full || true")
    try:
        done = node.task("true")
    finally:
        node.root("rm /tmp/full")
    assert done.code == 125
    assert "No space left on device" in done.err
    assert "free space in /tmp" in done.err
