"""The groups that nodes leave in the host's cgroup2 tree on hybrid cgroup v1 hosts: `muster/<cluster>/<node>`.

On such a host the first process of a node creates its group, and the engine, which does not know it, never removes it.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from docker.errors import DockerException

from cluster import names
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build.node_container import UNCONFINED

# On a machine with a load of 30, the kernel needed more than 2 s; usually the first look suffices.
_GONE_WITHIN_S = 15.0
_PAUSE_S = 0.1

_REMOVE_NODE = """
group="$ROOT/muster/$CLUSTER/$NODE"
[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \\; 2>/dev/null
[ ! -d "$group" ]"""
_REMOVE_CLUSTER = """
group="$ROOT/muster/$CLUSTER"
[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \\; 2>/dev/null
rmdir "$ROOT/muster" 2>/dev/null
[ ! -d "$group" ]"""
_LIST = 'find "$ROOT/muster/$CLUSTER" -maxdepth 1 -type d -printf "%f\\n" 2>/dev/null || true'


def remove_node(cluster: str, node: str) -> None:
    """Remove the group of a node, if it exists; `groups` still lists it if it stays busy."""
    _until_gone(_REMOVE_NODE, cluster, node)


def remove_cluster(cluster: str) -> None:
    """Remove the group of a cluster; call it only when no node is being created, as nodes create groups below it."""
    _until_gone(_REMOVE_CLUSTER, cluster, "")


def groups(cluster: str) -> list[str]:
    """Return the groups of a cluster as paths below the root of the tree: those of nodes first, its own last."""
    code, out = _run(_LIST, cluster, "")
    nodes = sorted(name for name in out.split() if code == 0 and name != cluster)
    return [f"muster/{cluster}/{node}" for node in nodes] + ([f"muster/{cluster}"] if cluster in out.split() else [])


def _until_gone(script: str, cluster: str, node: str) -> None:
    # The kernel releases the processes of a container shortly after the engine reports its removal.
    deadline = time.monotonic() + _GONE_WITHIN_S
    while _run(script, cluster, node)[0] != 0 and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _run(script: str, cluster: str, node: str) -> tuple[int, str]:
    if engine_client.engine().cgroup_version > 1:
        return 0, ""
    mounted = _mounted()
    variables = {"CLUSTER": cluster, "NODE": node, "ROOT": mounted or "/mnt"}
    if os.geteuid() != 0:
        return _in_helper(script, variables | {"ROOT": "/mnt"})
    mount = "" if mounted else "mount -t cgroup2 none /mnt || exit 0\n"
    namespace = [] if mounted else ["unshare", "--mount"]
    done = subprocess.run(
        [*namespace, "sh", "-c", mount + script],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def _in_helper(script: str, variables: dict[str, str]) -> tuple[int, str]:
    """Run the script in a container that sees the host's tree, for users of the engine who are not root."""
    api = engine_client.connect()
    labels = {names.CLUSTER: variables["CLUSTER"]}
    helper = api.create_container(
        names.IMAGE,
        ["sh", "-c", "mount -t cgroup2 none /mnt || exit 0\n" + script],
        environment=variables,
        labels=labels,
        host_config=api.create_host_config(
            cap_add=["SYS_ADMIN"], security_opt=list(UNCONFINED), cgroupns="host", network_mode="none"
        ),
    )
    try:
        api.start(helper["Id"])
        code = int(api.wait(helper["Id"])["StatusCode"])
        return code, api.logs(helper["Id"], stderr=False).decode()
    except DockerException:
        return 1, ""
    finally:
        api.remove_container(helper["Id"], force=True)


def _mounted() -> str | None:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
