"""The container that stands for an instance: it boots systemd, finds AWS's addresses, and runs its user data."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from docker.errors import NotFound
from docker.types import Mount

from cluster import names
from cluster.spec.model import SlurmRelease
from infra.targets.aws.rehearse.disks import LOOP_RULE, run_in
from infra.targets.aws.rehearse.file import File
from infra.targets.aws.rehearse.restarts import OFF_MARK
from infra.targets.aws.rehearse.slurm_releases import FOLDER as SLURM_PACKAGES
from infra.targets.aws.rehearse.ubuntu import HOME, list_image_files, read_program
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container

METADATA_ADDRESS, DNS_ADDRESS = "169.254.169.254", "169.254.169.253"
API_ADDRESS, MIRROR_ADDRESS = "198.18.0.1", "198.18.0.2"
"""Addresses of AWS's names and of public servers on the machines: of the range for benchmarks (RFC 2544)."""
STORAGE = "/rehearsal/storage"
ENVIRONMENTS = "/rehearsal/environments"
_LAST_LINES = 5
_NODE_IMAGES = frozenset(names.image(release) for release in get_args(SlurmRelease))
# Of the driver's own number, so that Slurm can block the GPUs of other jobs and nothing else.
_GPU_RULE = "c 195:* rwm"
_UNITS = "etc/systemd/system"
_RELAY_UNIT = """\
[Unit]
Description=Addresses of AWS
DefaultDependencies=no
After=systemd-tmpfiles-setup.service
Before=basic.target

[Service]
ExecStart=/usr/bin/python3 /usr/lib/rehearsal/relay.py {arguments}
Restart=always
RestartSec=0.2
"""
_PREPARE_UNIT = """\
[Unit]
Description=Hardware and names of an instance
DefaultDependencies=no
After=systemd-tmpfiles-setup.service
Before=basic.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/rehearsal/prepare.sh
"""
# systemd ends in the same way whether a machine is to restart or not.
_OFF_UNIT = f"""\
[Unit]
Description=Mark of a machine that is shut down for good
DefaultDependencies=no
Before=umount.target

[Service]
Type=oneshot
ExecStart=/usr/bin/touch {OFF_MARK}
"""
_USER_DATA_UNIT = """\
[Unit]
Description=User data
After=network.target rehearsal-relay.service rehearsal-prepare.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
KillMode=process
ExecStart=/usr/lib/rehearsal/user-data.sh
"""
_WANTS = f"{_UNITS}/multi-user.target.wants"
# AWS's library brings its own certificate authorities. Units find ours in their environment, because some cannot read
# homes. Slurm runs the programs that launch nodes without an environment; /nonexistent is the home of the user slurm.
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
_UNIT_DEFAULTS = f"[Manager]\nDefaultEnvironment=AWS_CA_BUNDLE={TRUSTED}\n"
_AWS_CONFIG = f"[default]\nca_bundle = {TRUSTED}\n"
_HOMES = ("root", "nonexistent")


@dataclass(frozen=True)
class Ports:
    """Ports at the gateway behind AWS's addresses."""

    metadata: int
    dns: int
    api: int
    nfs: int
    mirror: int

    def as_rules(self) -> str:
        """Return the arguments of relay.py."""
        rules = (
            f"tcp:{METADATA_ADDRESS}:80:{self.metadata}",
            f"udp:{DNS_ADDRESS}:53:{self.dns}",
            f"tcp:{API_ADDRESS}:443:{self.api}",
            f"tcp:{API_ADDRESS}:2049:{self.nfs}",
            f"tcp:{MIRROR_ADDRESS}:443:{self.mirror}",
        )
        return " ".join(rules)


@dataclass(frozen=True)
class Site:
    """What all machines of a rehearsal share."""

    cluster: str
    """Name of the rehearsal in Docker."""
    network: str
    gateway: str
    ports: Ports
    domain: str
    """Private DNS domain of the cluster."""
    authority: bytes
    """Certificate of the rehearsal's certificate authority."""
    labels: Mapping[str, str]
    lists_s: float
    """Seconds on AWS until package lists have been fetched."""
    package_s: float
    """Seconds that an installation takes that reads package lists."""
    archive_s: float
    """Seconds that an installation takes from the controller's archive."""
    speed: float
    """How many times faster than on AWS the stand-ins of package tools are."""
    build_s: float
    """Seconds that the build of Slurm takes."""
    digests: str
    """SHA-256 of stand-ins and of what they stand for, as the stand-in of sha256sum reads them."""


@dataclass(frozen=True)
class MachineArgs:
    """What distinguishes the container of one instance."""

    instance: str
    address: str
    cpus: int
    memory_mb: int
    gpus: int
    has_driver: bool
    """Whether its image has the GPU driver, and with it another kernel."""
    storage: Sequence[str]
    """Ids of the filesystems that exist."""
    hardware: Mapping[str, File] = field(default_factory=dict)
    slurm_packages: str = ""
    """Docker volume with the packages of Slurm's releases; empty if machines need only that of their image."""
    image: str = names.IMAGE
    """Docker image: a node image for AWS's images, or one made of a machine."""


def container_name(site: Site, instance: str) -> str:
    """Return the name of an instance's container."""
    return names.container(site.cluster, instance)


def start_machine(site: Site, args: MachineArgs) -> str:
    """Create and start the container of an instance and return its name."""
    props = {
        "cluster": site.cluster, "stack": site.cluster, "node": args.instance, "role": "rehearsal",
        "image": args.image, "cpus": args.cpus, "memory_mb": args.memory_mb,
        "devices": [], "mounts": [],
    }  # fmt: skip
    with engine_client.api_session(args.instance) as api:
        host: dict[str, Any] = node_container.host_config(props, engine_client.engine(), api.api_version)
        host["Mounts"] = _list_mounts(site, args)
        host["DeviceCgroupRules"] = [LOOP_RULE, _GPU_RULE]
        host["CapAdd"] = [*host["CapAdd"], "MKNOD"]
        options = node_container.options(props, dict(site.labels))
        options["hostname"] = "ip-" + args.address.replace(".", "-")
        endpoint = api.create_endpoint_config(ipv4_address=args.address)
        networking = {"EndpointsConfig": {site.network: endpoint}}
        container = api.create_container(**options, host_config=host, networking_config=networking)
        api.put_archive(container["Id"], "/", _archive(_list_files(site, args)))
        api.start(container["Id"])
    return container_name(site, args.instance)


def read_last_lines(name: str) -> list[str]:
    """Return the last lines that a machine has printed, which show why it has ended; empty if it has no container."""
    with engine_client.api_session(name) as api:
        try:
            return [str(line) for line in api.logs(name, tail=_LAST_LINES).decode(errors="replace").splitlines()]
        except NotFound:
            return []


def read_installation_s(name: str) -> float:
    """Return how long the stand-ins of package tools have slept on a machine."""
    return float(run_in(name, f"awk '{{ sum += $1 }} END {{ print sum + 0 }}' /{HOME}/slept"))


def _list_mounts(site: Site, args: MachineArgs) -> list[Mount]:
    mounts = [Mount(target=ENVIRONMENTS, source=names.ENV_CACHE_VOLUME, type="volume", read_only=True)]
    mounts += [
        Mount(target=f"{STORAGE}/{id_}", source=names.volume(site.cluster, id_), type="volume") for id_ in args.storage
    ]
    if args.slurm_packages:
        mounts.append(Mount(target=SLURM_PACKAGES, source=args.slurm_packages, type="volume", read_only=True))
    # Disks of this machine must not show, and those of the rehearsal must be able to appear.
    block = names.volume(site.cluster, f"block-{args.instance}")
    return [*mounts, Mount(target="/sys/block", source=block, type="volume", labels=dict(site.labels))]


def _list_files(site: Site, args: MachineArgs) -> dict[str, File | str]:
    """Return files by path without the leading slash; a string is the target of a link."""
    files: dict[str, File | str] = {
        f"{_UNITS}/rehearsal-relay.service": File(
            _RELAY_UNIT.format(arguments=f"{site.gateway} {site.ports.as_rules()}")
        ),
        f"{_UNITS}/rehearsal-prepare.service": File(_PREPARE_UNIT),
        f"{_UNITS}/rehearsal-user-data.service": File(_USER_DATA_UNIT),
        f"{_UNITS}/rehearsal-off.service": File(_OFF_UNIT),
        f"{_UNITS}/poweroff.target.wants/rehearsal-off.service": f"/{_UNITS}/rehearsal-off.service",
        "etc/systemd/system.conf.d/rehearsal.conf": File(_UNIT_DEFAULTS),
        **{f"{home}/.aws/config": File(_AWS_CONFIG) for home in _HOMES},
        "usr/local/share/ca-certificates/rehearsal.crt": File(site.authority.decode()),
        # An image that was made of a machine has them, with the kernel and the packages that were installed there.
        **(list_image_files(has_gpus=args.has_driver) if args.image in _NODE_IMAGES else {}),
        f"{HOME}/domain": File(f"{site.domain}\n"),
        f"{HOME}/gpus": File(f"{args.gpus}\n"),
        f"{HOME}/list-seconds": File(f"{site.lists_s:.2f}\n"),
        f"{HOME}/package-seconds": File(f"{site.package_s:.2f}\n"),
        f"{HOME}/archive-seconds": File(f"{site.archive_s:.2f}\n"),
        f"{HOME}/speed": File(f"{site.speed:g}\n"),
        f"{HOME}/slept": File(""),
        f"{HOME}/build-seconds": File(f"{site.build_s:.2f}\n"),
        f"{HOME}/digests": File(site.digests),
        f"{HOME}/relay.py": read_program("relay.py"),
        f"{HOME}/prepare.sh": read_program("prepare.sh"),
        f"{HOME}/user-data.sh": read_program("user-data.sh"),
    }
    for unit in ("relay", "prepare", "user-data"):
        files[f"{_WANTS}/rehearsal-{unit}.service"] = f"/{_UNITS}/rehearsal-{unit}.service"
    files |= {f"{HOME}/hardware/{path}": file for path, file in args.hardware.items()}
    return files


def _archive(files: Mapping[str, File | str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, file in files.items():
            entry = tarfile.TarInfo(path)
            if isinstance(file, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, file
                tar.addfile(entry)
                continue
            data = file.content.encode()
            entry.size, entry.mode = len(data), file.mode
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
