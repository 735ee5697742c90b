"""The section `nebius` of a spec: the project, who may log in, and the machine of each role and group."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel, ValueDescription, field
from cluster.spec.patterns import Name
from infra.targets.rented import section

SECTION = "nebius"
LOGIN_FIX = (
    "create a profile of a service account with Nebius's CLI (`nebius profile create`), or set NEBIUS_IAM_TOKEN to "
    "what `nebius iam get-access-token` prints"
)
PROJECT = r"^project-[a-z0-9]+$"
_PRESET = re.compile(r"^(?:(?P<gpus>\d+)gpu-)?(?P<cpus>\d+)vcpu-(?P<memory_gb>\d+)gb$")

FilesystemType = Literal["NETWORK_SSD", "NETWORK_HDD", "WEKA", "VAST"]
DiskType = Literal["NETWORK_SSD", "NETWORK_HDD", "NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3"]


class NebiusMachine(SpecModel):
    """The hardware of an instance: a platform, and one of its presets."""

    platform: str = field("platform of the instance", "replace", min_length=1, examples=["cpu-d3"])
    preset: Annotated[str, ValueDescription("a preset such as 8vcpu-32gb or 8gpu-128vcpu-1600gb")] = field(
        "preset of the platform: GPUs, CPUs and memory", "replace", pattern=_PRESET.pattern, examples=["8vcpu-32gb"]
    )

    @property
    def gpus(self) -> int:
        return self._read("gpus")

    @property
    def cpus(self) -> int:
        return self._read("cpus")

    @property
    def memory_gb(self) -> int:
        return self._read("memory_gb")

    @property
    def name(self) -> str:
        """Platform and preset, as the price table names the machine."""
        return f"{self.platform}/{self.preset}"

    def _read(self, what: str) -> int:
        match = _PRESET.match(self.preset)
        return int(match[what] or 0) if match else 0


class NebiusGroup(NebiusMachine):
    """The instances of a node group."""

    fabric: str | None = field(
        "InfiniBand fabric of the group's GPU cluster; required for groups with fabric infiniband",
        "replace",
        default=None,
        min_length=1,
        examples=["fabric-3"],
    )
    preemptible: bool = field(
        "cheaper instances that Nebius may stop at any time; `up` starts them again", "replace", default=False
    )


class Nebius(SpecModel):
    """Where the instances of a cluster on Nebius are created, and their hardware."""

    project: Annotated[str, ValueDescription("the id of a project, as `nebius iam project list` prints it")] = field(
        "project in which everything is created", "forbidden", pattern=PROJECT, examples=["project-e00example"]
    )
    ssh_from: tuple[str, ...] = field(
        "address ranges that may connect to SSH; of this machine, at least",
        "safe",
        strict=False,
        min_length=1,
        max_length=8,
        examples=[["203.0.113.7/32"]],
    )
    public_addresses: bool = field(
        "whether instances have public addresses; without them, muster runs on a machine in the same network",
        "replace",
        default=True,
    )
    image: str = field(
        "id of the boot disk image: Debian 12 or 13 or Ubuntu 22.04 or 24.04 with Slurm (docs/nebius.md), "
        "and NVIDIA's drivers for GPUs",
        "replace",
        min_length=1,
        examples=["computeimage-e00example"],
    )
    disk_type: DiskType = field("type of boot disks", "replace", default="NETWORK_SSD")
    filesystem_type: FilesystemType = field("type of shared filesystems", "forbidden", default="NETWORK_SSD")
    controller: NebiusMachine = field(
        "machine of the controller",
        "replace",
        default=NebiusMachine(platform="cpu-d3", preset="8vcpu-32gb"),
        examples=[{"platform": "cpu-d3", "preset": "8vcpu-32gb"}],
    )
    login: NebiusMachine = field(
        "machine of the login node",
        "replace",
        default=NebiusMachine(platform="cpu-d3", preset="4vcpu-16gb"),
        examples=[{"platform": "cpu-d3", "preset": "4vcpu-16gb"}],
    )
    groups: dict[Name, NebiusGroup] = field(
        "machines of each node group, by the group's name",
        "replace",
        min_length=1,
        examples=[{"gpu": {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb", "fabric": "fabric-3"}}],
    )


def nebius_section(spec: ClusterSpec) -> Nebius | None:
    """Return the section `nebius` of a spec."""
    return spec.section(SECTION, Nebius)


def require_section(spec: ClusterSpec) -> Nebius:
    """Return the section of a valid spec."""
    return section.require_section(spec, SECTION, Nebius)
