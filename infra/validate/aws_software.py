"""Rules about the software lock: what a spec names must be able to hold what the table asks of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from infra.catalog import software as table
from infra.spec import ClusterSpec
from infra.validate import software
from infra.validate.aws_types import groups
from infra.validate.issue import Issue, error, warning


def fetched(spec: ClusterSpec) -> Iterator[Issue]:
    """Only AWS's image of GPU machines is known to have EFA's software; others fetch it while they are set up."""
    if spec.aws is None or spec.network.egress or spec.network.vpc_id:
        return
    for name, (group, found) in groups(spec).items():
        if group.fabric != "efa":
            continue
        where = f"groups.{name}.fabric"
        if not found.gpus.count:
            message = f"the image of {found.name} has no EFA software, and `network.egress: false` lets it fetch none"
            yield error("efa_software", where, message, "write `fabric: tcp`, or `egress: true` under `network:`")
        elif spec.aws.ami:
            message = f"what '{spec.aws.ami}' lacks of EFA's software cannot be fetched with `network.egress: false`"
            fix = "make sure that it has the versions of docs/aws.md, or remove `ami` to get AWS's own image"
            yield warning("image_software", "aws.ami", message, fix)


def lock(spec: ClusterSpec, root: Path) -> Iterator[Issue]:
    """NCCL comes with the training environment: it is known before any node exists."""
    path = root / spec.software.training_lock
    if spec.target != "aws" or not path.is_file() or not any(found.gpus.count for _, found in groups(spec).values()):
        return
    said = table.from_lock(path.read_text(encoding="utf-8"))
    for fault in table.faults([table.components()[name] for name in said], said):
        fix = f"lock {fault.component.title} {fault.allowed}, or name another lock file"
        yield error("lock_version", software.WHERE, f"'{spec.software.training_lock}' has {fault}", fix)
