"""How a node's container is made: what systemd, sshd and Slurm need inside it, without privileged mode. Pure."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

from docker.types import HostConfig, Mount

from cluster import names
from infra.resources.properties import Properties
from infra.targets.local.docker_engine import Engine

SPEC = "muster.spec"
"""Label: hash of everything that cannot change without another container."""

REPLACING = (
    "cluster",
    "stack",
    "node",
    "image",
    "cpus",
    "memory_mb",
    "devices",
    "network_id",
    "address",
    "mounts",
    "ssh_port",
)

# SYS_NICE, SYS_PTRACE and IPC_LOCK: slurmd binds other users' tasks to cores; the rest is what systemd needs.
_CAPABILITIES = [
    *("SYS_ADMIN", "NET_ADMIN", "SYSLOG", "AUDIT_CONTROL", "AUDIT_READ"),
    *("SYS_NICE", "SYS_PTRACE", "IPC_LOCK"),
]
_SHM = "1g"
# Docker's AppArmor profile denies every mount, SELinux's container type the cgroup tree; PID 1 needs both before it is
# systemd (https://docs.docker.com/engine/security/apparmor). Engines without either accept the options and ignore them.
UNCONFINED = ("seccomp=unconfined", "apparmor=unconfined", "label=disable")


def host_config(props: Properties, engine: Engine, api_version: str) -> HostConfig:
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
            for m in props["mounts"]
        ],
        tmpfs={"/run": "exec", "/tmp": "exec"},  # noqa: S108  # the node's own
        shm_size=_SHM,
        nano_cpus=int(props["cpus"]) * 10**9,
        mem_limit=memory,
        memswap_limit=memory,
        port_bindings={22: ("127.0.0.1", int(props["ssh_port"]))} if props.get("ssh_port") else None,
        restart_policy={"Name": "no"},
    )


def options(props: Properties, labels: dict[str, str]) -> dict[str, Any]:
    """Everything of a container but its host configuration and its network."""
    return {
        "image": props["image"],
        "name": names.container(props["cluster"], props["node"]),
        "hostname": props["node"],
        # A terminal makes systemd say what it does, so that `docker logs` tells why a node did not come up.
        "tty": True,
        "environment": {"container": "docker", "MUSTER_CLUSTER": props["cluster"], "TERM": "dumb"},
        "stop_signal": "SIGRTMIN+3",
        "ports": [22] if props.get("ssh_port") else None,
        "labels": labels
        | names.node_labels(props["role"], props["node"], props.get("group"))
        | {SPEC: spec_hash(props)},
    }


def spec_hash(props: Properties) -> str:
    # Pulumi's wire format has only floating numbers.
    numbers = {key: int(props[key]) for key in ("cpus", "memory_mb", "ssh_port") if props.get(key) is not None}
    fixed = {key: props.get(key) for key in REPLACING} | numbers
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def authorized_keys(public_key: str) -> bytes:
    return _archive({"root/.ssh/authorized_keys": (public_key + "\n", 0o600)})


def keys(public_key: str, host_private: str, host_public: str) -> bytes:
    """What must be in the node before its sshd starts, as an archive to unpack at `/`."""
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
