"""Rules about nodes that come and go: time to be bought and to boot before Slurm gives them up."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning

# A machine with GPUs is up in 3 minutes at best and in 12 where it installs much
# (github.com/awslabs/awsome-distributed-ai, architectures/aws-pcs).
BOOT_S = 720


def resume(spec: ClusterSpec) -> Iterator[Issue]:
    if _scales(spec) and spec.slurm.resume_s < BOOT_S:
        message = f"{spec.slurm.resume_s} is less than a GPU node may take to boot ({BOOT_S} s): Slurm marks it down"
        yield warning("resume_short", "slurm.resume_s", message, f"write `resume_s: {BOOT_S}` or more")


def retries(spec: ClusterSpec) -> Iterator[Issue]:
    """After half of what Slurm waits slurm/power gives up: a machine that comes later has no time to boot."""
    for name, group in spec.groups.items():
        retry, resume_s = group.capacity.retry_s, spec.slurm.resume_s
        if group.max is not None and 2 * retry > resume_s:
            message = (
                f"{retry} is more than half of slurm.resume_s ({resume_s}): the other half is for the node to boot"
            )
            fix = f"write {resume_s // 2} or less, or raise slurm.resume_s"
            yield error("retry_long", f"groups.{name}.capacity.retry_s", message, fix)


def _scales(spec: ClusterSpec) -> bool:
    return any(group.max is not None for group in spec.groups.values())
