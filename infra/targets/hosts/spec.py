"""The section `hosts` of a spec: how to log in to each machine, and which role it has."""

from __future__ import annotations

from typing import Annotated

from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel, ValueDescription, field
from cluster.spec.patterns import MOUNT, Name

SECTION = "hosts"
# Nothing that starts with '-': ssh would read it as an option.
ADDRESS = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$"
FINGERPRINT = r"^SHA256:[A-Za-z0-9+/]{43}$"
EXAMPLE_FINGERPRINT = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
LOGIN_USER = r"^[a-z_][a-z0-9_.-]{0,31}$"
DEFAULT_USER = "root"
DEFAULT_PORT = 22

_ADDRESS_WORDS = ValueDescription("an IPv4 address or a DNS name")
FingerprintText = Annotated[
    str | None, ValueDescription("a fingerprint as `ssh-keygen -l` prints it, SHA256: and 43 characters")
]
LoginUser = Annotated[str | None, ValueDescription("a user name (lower-case letters, digits, '_', '.' and '-')")]


class Host(SpecModel):
    """A machine, and how to log in to it; what it leaves out is that of the section."""

    address: Annotated[str, _ADDRESS_WORDS] = field(
        "address for SSH, as seen from here or from the jump host", "replace", pattern=ADDRESS, examples=["10.0.0.11"]
    )
    cluster_address: Annotated[str | None, _ADDRESS_WORDS] = field(
        "address by which the other hosts reach it; by default `address`",
        "replace",
        default=None,
        pattern=ADDRESS,
        examples=["192.168.7.11"],
    )
    fingerprint: FingerprintText = field(
        "fingerprint of its SSH host key; by default the key in `known_hosts`",
        "safe",
        default=None,
        pattern=FINGERPRINT,
        examples=[EXAMPLE_FINGERPRINT],
    )
    user: LoginUser = field(
        "user for SSH, root or one with sudo without a password",
        "safe",
        default=None,
        pattern=LOGIN_USER,
        examples=["ubuntu"],
    )
    port: int | None = field("port of its SSH server", "safe", default=None, ge=1, le=65535, examples=[2222])
    identity_file: str | None = field(
        "private key on this machine", "safe", default=None, min_length=1, examples=["~/.ssh/cluster"]
    )
    jump: Name | None = field("jump host to go through", "safe", default=None, examples=["bastion"])


class HostGroup(SpecModel):
    """The hosts of a node group."""

    match: tuple[str, ...] = field(
        "names of hosts; `*`, `?` and `[0-9]` stand for characters",
        "drain",
        strict=False,
        min_length=1,
        examples=[["rack1-*"]],
    )


class SwitchGroup(SpecModel):
    """The hosts under a leaf switch, or under several to which the same hosts are connected."""

    match: tuple[str, ...] = field(
        "names of the hosts under it; `*`, `?` and `[0-9]` stand for characters",
        "safe",
        strict=False,
        min_length=1,
        examples=[["rack1-*"]],
    )
    spine: Name | None = field(
        "name of the spine switches above it, if not all leaf switches have the same",
        "safe",
        default=None,
        examples=["pod1"],
    )


class HostNfs(SpecModel):
    """The host that serves the storages of kind `nfs` to the others."""

    server: Name | None = field(
        "host that serves; by default the controller", "forbidden", default=None, examples=["head"]
    )
    folder: str = field(
        "folder on that host with the files of each storage",
        "forbidden",
        default="/srv/muster",
        pattern=MOUNT,
        examples=["/data/muster"],
    )


class Hosts(SpecModel):
    """Machines that exist already, their roles, and how to log in to them."""

    machines: dict[Name, Host] = field(
        "hosts by name", "drain", min_length=1, examples=[{"head": {"address": "10.0.0.10"}}]
    )
    controller: Name = field("host that becomes the controller", "forbidden", examples=["head"])
    login: Name | None = field("host that becomes the login node", "replace", default=None, examples=["front"])
    groups: dict[Name, HostGroup] = field(
        "hosts of each node group, by the group's name", "drain", examples=[{"gpu": {"match": ["rack1-*"]}}]
    )
    nfs: HostNfs | None = field(
        "where the files of storages of kind `nfs` are; by default in /srv/muster on the controller",
        "forbidden",
        default=None,
        examples=[{"server": "head", "folder": "/data/muster"}],
    )
    switches: dict[Name, SwitchGroup] = field(
        "leaf switches of the fabric and the hosts under each: Slurm keeps a job under one switch if it fits there; "
        "`muster check` prints them if it can read them",
        "safe",
        default={},
        examples=[{"leaf1": {"match": ["rack1-*"]}}],
    )
    jump_hosts: dict[Name, Host] = field(
        "jump hosts by name; they are not part of the cluster and nothing is changed on them",
        "safe",
        default={},
        examples=[{"bastion": {"address": "bastion.example.com"}}],
    )
    user: LoginUser = field(
        f"user for SSH, root or one with sudo without a password; by default {DEFAULT_USER}",
        "safe",
        default=None,
        pattern=LOGIN_USER,
        examples=["ubuntu"],
    )
    port: int | None = field(
        f"port of the SSH servers; by default {DEFAULT_PORT}", "safe", default=None, ge=1, le=65535, examples=[2222]
    )
    identity_file: str | None = field(
        "private key on this machine; by default the keys of the SSH agent",
        "safe",
        default=None,
        min_length=1,
        examples=["~/.ssh/cluster"],
    )
    jump: Name | None = field("jump host to all machines", "safe", default=None, examples=["bastion"])
    known_hosts: str | None = field(
        "file with the host keys of machines without a fingerprint",
        "safe",
        default=None,
        min_length=1,
        examples=["~/.ssh/known_hosts"],
    )
    trust_first_use: bool = field(
        "accept any host key of machines without a fingerprint or an entry in `known_hosts`; "
        "somebody in between can then pose as the machine",
        "safe",
        default=False,
    )


def hosts_section(spec: ClusterSpec) -> Hosts | None:
    """Return the section `hosts` of a spec."""
    return spec.section(SECTION, Hosts)
