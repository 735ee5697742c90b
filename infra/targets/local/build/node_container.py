"""The container of a node: the options that systemd, sshd and Slurm need, without privileged mode. Pure functions."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any, get_args

from docker.types import HostConfig, Mount

from cluster import names
from cluster.spec.model import SlurmRelease
from infra.targets.local.docker_engine import Engine

if TYPE_CHECKING:
    # This import loads Pulumi, which takes 0.3 s; commands use this module without it.
    from infra.resources.properties import Properties

SPEC = "muster.spec"
"""Label with the hash of the inputs that the container was created from."""

REPLACING = (
    "cluster",
    "stack",
    "node",
    "cpus",
    "memory_mb",
    "devices",
    "network_id",
    "address",
    "mounts",
    "ssh_port",
)
"""Inputs whose change replaces the container. The image is not one of them: it changes with the release of Slurm, which
`muster upgrade` installs on running nodes."""

# The first line is what systemd needs; slurmd needs the second to bind other users' tasks to cores.
_CAPABILITIES = [
    *("SYS_ADMIN", "NET_ADMIN", "SYSLOG", "AUDIT_CONTROL", "AUDIT_READ"),
    *("SYS_NICE", "SYS_PTRACE", "IPC_LOCK"),
]
_SHM = "1g"
# Docker's AppArmor profile denies mounts, and SELinux's container type denies the cgroup tree. PID 1 needs both before
# it runs systemd (https://docs.docker.com/engine/security/apparmor). Engines without them ignore these options.
UNCONFINED = ("seccomp=unconfined", "apparmor=unconfined", "label=disable")


def host_config(props: Properties, engine: Engine, api_version: str) -> HostConfig:
    """Return the host configuration of a node's container: its limits, mounts, devices and capabilities."""
    memory = int(props["memory_mb"]) * 1024 * 1024
    writable = ["writable-cgroups=true"] if engine.writable_cgroups else []
    return HostConfig(
        version=api_version,
        cap_add=_CAPABILITIES,
        security_opt=[*UNCONFINED, *writable],
        cgroupns="private" if engine.cgroup_version > 1 else "host",
        devices=[f"/dev/null:{device}:rwm" for device in props.get("devices", [])],
        mounts=[
            Mount(target=m["target"], source=m["volume"], type="volume", read_only=m.get("read_only", False))
            for m in (*props["mounts"], *props.get("state_mounts", ()))
        ],
        tmpfs={"/run": "exec", "/tmp": "exec"},  # noqa: S108  # /tmp of the node, not of this machine
        shm_size=_SHM,
        nano_cpus=int(props["cpus"]) * 10**9,
        mem_limit=memory,
        memswap_limit=memory,
        port_bindings={22: ("127.0.0.1", int(props["ssh_port"]))} if props.get("ssh_port") else None,
        restart_policy={"Name": "no"},
    )


def options(props: Properties, labels: dict[str, str]) -> dict[str, Any]:
    """Return the options of a node's container other than its host configuration and its network."""
    return {
        "image": props["image"],
        "name": names.container(props["cluster"], props["node"]),
        "hostname": props["node"],
        # With a terminal systemd logs what it does, so `docker logs` shows why a node did not start.
        "tty": True,
        "environment": {"container": "docker", "MUSTER_CLUSTER": props["cluster"], "TERM": "dumb"},
        "stop_signal": "SIGRTMIN+3",
        "ports": [22] if props.get("ssh_port") else None,
        "labels": labels
        | names.node_labels(props["role"], props["node"], props.get("group"))
        | {SPEC: spec_hash(props)},
    }


def spec_hash(props: Properties) -> str:
    """Return the hash of the image and of the inputs whose change replaces the container."""
    # Pulumi passes every number as a float.
    numbers = {key: int(props[key]) for key in ("cpus", "memory_mb", "ssh_port") if props.get(key) is not None}
    fixed = {key: props.get(key) for key in ("image", *REPLACING)} | numbers
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def usable_hashes(props: Properties) -> frozenset[str]:
    """Return the hashes of the containers that can be this node: also those of other releases of Slurm."""
    images = (names.image(release) for release in get_args(SlurmRelease))
    return frozenset(spec_hash(props | {"image": image}) for image in (props["image"], *images))


def archive_authorized_keys(public_key: str) -> bytes:
    """Return a tar archive, to unpack at `/`, that lets a key log in as root."""
    return _archive({"root/.ssh/authorized_keys": (public_key + "\n", 0o600)})


def archive_keys(public_key: str, host_private: str, host_public: str) -> bytes:
    """Return a tar archive, to unpack at `/`, of the keys that sshd needs before it starts."""
    return _archive(
        {
            "root/.ssh/authorized_keys": (public_key + "\n", 0o600),
            "etc/ssh/ssh_host_ed25519_key": (host_private, 0o600),
            "etc/ssh/ssh_host_ed25519_key.pub": (host_public + "\n", 0o644),
        }
    )


def _archive(files: dict[str, tuple[str, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, (text, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()
