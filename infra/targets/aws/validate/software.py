"""Rules about the software lock: what a spec names must be able to hold what the table asks of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cluster.catalog import software as table
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import groups
from infra.validate import software


def fetched(spec: ClusterSpec) -> Iterator[Issue]:
    """Only AWS's image of GPU machines is known to have EFA's software; others fetch it while they are set up."""
    if aws_section(spec) is None or spec.network.egress or spec.network.vpc_id:
        return
    own = {images.field(f): images.given(spec, f) for group, f in groups(spec).values() if group.fabric == "efa"}
    for field, image in own.items():
        if image:
            message = f"what '{image}' lacks of EFA's software cannot be fetched with `network.egress: false`"
            fix = "make sure that it has the versions of docs/aws.md, or write `egress: true` under `network:`"
            yield warning("image_software", f"aws.{field}", message, fix)


def lock(spec: ClusterSpec, root: Path) -> Iterator[Issue]:
    """NCCL comes with the training environment: it is known before any node exists."""
    path = root / spec.software.training_lock
    if spec.target != "aws" or not path.is_file() or not any(found.gpus.count for _, found in groups(spec).values()):
        return
    said = table.read_lock(path.read_text(encoding="utf-8"))
    for fault in table.find_faults([table.components()[name] for name in said], said):
        fix = f"lock {fault.component.title} {fault.allowed}, or name another lock file"
        yield error("lock_version", software.WHERE, f"'{spec.software.training_lock}' has {fault}", fix)
