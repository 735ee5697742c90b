"""The fields of the scheduler: partitions, limits of jobs, timeouts."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from cluster.spec.base import SpecModel, field
from cluster.spec.patterns import Name

# A pause of the network must not cost a healthy node its jobs, and on targets that replace nodes its machine.
# Containers of one machine have no network between them.
NODE_TIMEOUT_S = 300
SINGLE_HOST_NODE_TIMEOUT_S = 30


class Partition(SpecModel):
    """A further Slurm partition over the nodes of some groups, with limits of its own."""

    groups: tuple[Name, ...] = field(
        "groups whose nodes are in the partition", "safe", min_length=1, strict=False, examples=[["gpu"]]
    )
    priority: int = field(
        "jobs in partitions with a higher priority start first; a group's own partition has 1",
        "safe",
        default=1,
        ge=0,
        le=65533,
    )
    default_time: str | None = field(
        "time limit of jobs that set none; by default `slurm.default_time`", "safe", default=None, examples=["0:30:00"]
    )
    max_time: str | None = field(
        "longest time limit of a job; by default `slurm.max_time`", "safe", default=None, examples=["2:00:00"]
    )
    max_nodes: int | None = field(
        "largest number of nodes of a job", "safe", default=None, ge=1, le=65533, examples=[2]
    )
    accounts: tuple[Name, ...] = field(
        "Slurm accounts that may use it; by default all", "safe", default=(), strict=False, examples=[["research"]]
    )


class SlurmOptions(SpecModel):
    """Scheduler settings."""

    default_group: Name | None = field(
        "group or partition for jobs that name none; by default the first group by name",
        "safe",
        default=None,
        examples=["gpu"],
    )
    partitions: dict[Name, Partition] = field(
        "further partitions by name, over the nodes of groups; each group also has its own partition",
        "safe",
        default={},
        examples=[{"debug": {"groups": ["gpu"], "priority": 10, "max_time": "2:00:00"}}],
    )
    default_time: str = field("time limit of jobs that set none", "safe", default="1:00:00")
    max_time: str = field("longest time limit of a job", "safe", default="UNLIMITED")
    slurmd_timeout_s: int | None = field(
        "seconds without an answer after which a node is down; by default 30 if all nodes share one machine, else 300",
        "safe",
        default=None,
        ge=10,
        le=3600,
        examples=[300],
    )
    cgroups: Literal["auto", "none"] = field(
        "`auto`: the kernel's cgroups limit jobs to the CPUs and memory that they requested; `none`: no limits",
        "safe",
        default="auto",
    )
    connections: Literal["same-user", "all"] = field(
        "`same-user`: users' programs on compute nodes accept connections only from the same user; `all`: from anyone",
        "safe",
        default="same-user",
    )
    kill_wait_s: int = field("seconds between SIGTERM and SIGKILL", "safe", default=30, ge=1, le=600)
    suspend_s: int = field(
        "seconds of idle time after which an autoscaled node is released", "safe", default=600, ge=60, le=86400
    )
    resume_s: int = field("seconds that an autoscaled node has to come up", "safe", default=1800, ge=60, le=7200)
    extra: dict[str, str] = field(
        "additional slurm.conf settings by key; keys that run programs or load code are refused",
        "safe",
        default={},
        examples=[{"MaxArraySize": "5000"}],
    )

    @field_validator("partitions")
    @classmethod
    def _by_name(cls, partitions: dict[str, Partition]) -> dict[str, Partition]:
        """Sort by key, as Pulumi does; the order in the file has no meaning."""
        return dict(sorted(partitions.items()))

    def node_timeout_s(self, *, single_host: bool) -> int:
        """Return the seconds without an answer after which a node is down; `single_host`: nodes share one machine."""
        if self.slurmd_timeout_s is not None:
            return self.slurmd_timeout_s
        return SINGLE_HOST_NODE_TIMEOUT_S if single_host else NODE_TIMEOUT_S
