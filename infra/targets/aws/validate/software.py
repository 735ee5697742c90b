"""Rules about the software of nodes: own images and the training lock must allow the required versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cluster.catalog import software as table
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan import images
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import list_typed_groups
from infra.validate import software


def check_efa_software(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about own images with EFA but without egress: only AWS's GPU image is known to have the software."""
    if aws_section(spec) is None or spec.network.egress or spec.network.vpc_id:
        return
    own_images = {
        f"groups.{name}.image" if group.image else f"aws.{images.field(machine)}": images.given_to_group(spec, group)
        for name, (group, machine) in list_typed_groups(spec).items()
        if group.fabric == "efa"
    }
    for where, image in own_images.items():
        if image:
            message = f"EFA software that '{image}' lacks cannot be installed with `network.egress: false`"
            fix = "make sure that it has the versions in docs/aws.md, or write `egress: true` under `network:`"
            yield warning("image_software", where, message, fix)


def check_lock(spec: ClusterSpec, root: Path) -> Iterator[Issue]:
    """Report versions in the training lock that nodes do not allow, for example of NCCL."""
    path = root / spec.software.training_lock
    if (
        spec.target != "aws"
        or not path.is_file()
        or not any(machine.gpus.count for _, machine in list_typed_groups(spec).values())
    ):
        return
    versions = table.read_lock(path.read_text(encoding="utf-8"))
    for fault in table.find_faults([table.components()[name] for name in versions], versions):
        fix = f"lock {fault.component.title} {fault.allowed}, or name another lock file"
        yield error("lock_version", software.WHERE, f"'{spec.software.training_lock}' has {fault}", fix)
