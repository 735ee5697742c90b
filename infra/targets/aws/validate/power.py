"""Rules about autoscaled nodes: time to buy and boot them before Slurm gives up."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning

# A GPU machine boots in 3 minutes at best and in 12 if it installs a lot
# (github.com/awslabs/awsome-distributed-ai, architectures/aws-pcs).
BOOT_S = 720


def check_resume_time(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn if Slurm waits less than a GPU node may take to boot."""
    if _is_autoscaled(spec) and spec.slurm.resume_s < BOOT_S:
        message = f"{spec.slurm.resume_s} is less than a GPU node may take to boot ({BOOT_S} s): Slurm marks it down"
        yield warning("resume_short", "slurm.resume_s", message, f"write `resume_s: {BOOT_S}` or more")


def check_retry_time(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a retry time over half of resume_s: slurm/power then gives up, because the node could not boot in time."""
    for name, group in spec.groups.items():
        retry, resume_s = group.capacity.retry_s, spec.slurm.resume_s
        if group.max is not None and 2 * retry > resume_s:
            message = f"{retry} is more than half of slurm.resume_s ({resume_s}): the node needs the other half to boot"
            fix = f"write {resume_s // 2} or less, or raise slurm.resume_s"
            yield error("retry_long", f"groups.{name}.capacity.retry_s", message, fix)


def _is_autoscaled(spec: ClusterSpec) -> bool:
    return any(group.max is not None for group in spec.groups.values())
