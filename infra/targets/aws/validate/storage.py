"""Rules about filesystems on AWS: sizes and speeds that are sold, what each kind has, where none may be mounted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.catalog.lustre import EFA_SMALLEST_GB, SMALLEST_GB, STEP_GB, find_problems, size_gb, throughput
from cluster.spec import ClusterSpec, Storage
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.network import zones
from infra.targets.aws.spec import aws_section

LUSTRE = "fsx-lustre"
# Which kinds have which field; `mount`, `kind` and `keep` belong to all.
HAVE = {
    "size_gb": (LUSTRE,),
    "throughput": (LUSTRE,),
    "efa": (LUSTRE,),
    "s3": (LUSTRE,),
    "id": ("existing",),
}
FILE_SYSTEM = re.compile(r"fs-([0-9a-f]{8}|[0-9a-f]{17})")
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.*'()/-]*)?")
# The instance store is the node's own scratch.
LOCAL = "/local"


def fields(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        for field, kinds in HAVE.items():
            if getattr(storage, field) and storage.kind not in kinds and storage.kind != "volume":
                message = (
                    f"{_said(storage, field)} has no effect on kind '{storage.kind}'; kinds that have it: {kinds[0]}"
                )
                fix = f"remove it, or write `kind: {kinds[0]}`"
                yield error("storage_field", f"storage.{name}.{field}", message, fix)


def lustre(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        if storage.kind != LUSTRE:
            continue
        for field, message in find_problems(storage):
            yield error(f"lustre_{field}", f"storage.{name}.{field}", message, _fix(storage, field))


def lustre_efa_step(spec: ClusterSpec) -> Iterator[Issue]:
    """docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html"""
    for name, storage in spec.storage.items():
        step = EFA_SMALLEST_GB.get(throughput(storage))
        if storage.kind == LUSTRE and storage.efa and step and size_gb(storage) > step and size_gb(storage) % step:
            message = f"{size_gb(storage)} is not sold with EFA at {throughput(storage)}; allowed: a multiple of {step}"
            nearest = -(-size_gb(storage) // step) * step
            yield error("lustre_efa_step", f"storage.{name}.size_gb", message, f"write `size_gb: {nearest}`")


def lustre_efa_clients(spec: ClusterSpec) -> Iterator[Issue]:
    if any(group.fabric == "efa" for group in spec.groups.values()):
        return
    for name, storage in spec.storage.items():
        if storage.kind == LUSTRE and storage.efa:
            message = "true has no effect: no group has fabric efa, and it cannot be switched off later"
            yield error("lustre_efa_clients", f"storage.{name}.efa", message, "remove it, or write `fabric: efa`")


def lustre_zone(spec: ClusterSpec) -> Iterator[Issue]:
    """A Lustre filesystem lies in one zone, that of the controller."""
    if aws_section(spec) is None or spec.network.vpc_id:
        return
    first = zones(spec)[0]
    others = {zone for group in spec.groups.values() for zone in group.capacity.zones or zones(spec)} - {first}
    for name, storage in spec.storage.items():
        if storage.kind == LUSTRE and others:
            message = f"lies in {first}: reads from {', '.join(sorted(others))} are slower and cost 0.01 USD per GB"
            yield warning("lustre_zone", f"storage.{name}", message, f"keep the groups in {first}, or use EFS")


def s3(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        if storage.s3 is not None and not S3.fullmatch(storage.s3):
            message = f"'{storage.s3}' is no place in S3; allowed: s3:// and a bucket, with or without a prefix"
            yield error("s3_format", f"storage.{name}.s3", message, "write for example `s3: s3://my-data/corpus`")


def existing(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        where = f"storage.{name}.id"
        if storage.kind == "existing" and storage.id is None:
            message = "required with kind existing, but missing; expected the id of an FSx for Lustre or EFS filesystem"
            yield error("no_file_system", where, message, "add `id: fs-...`")
        elif storage.kind == "existing" and storage.id and not FILE_SYSTEM.fullmatch(storage.id):
            message = f"'{storage.id}' is no filesystem; allowed: fs- and 8 or 17 hexadecimal digits"
            yield error("file_system_format", where, message, "write for example `id: fs-0123456789abcdef0`")
        if storage.kind == "existing" and not storage.keep:
            message = "false has no effect: a filesystem that existed before is never removed"
            yield error("existing_kept", f"storage.{name}.keep", message, "remove it")


def existing_twice(spec: ClusterSpec) -> Iterator[Issue]:
    owners: dict[str, str] = {}
    for name, storage in spec.storage.items():
        if storage.id in owners:
            message = f"'{storage.id}' is already storage '{owners[storage.id]}'"
            yield error("file_system_twice", f"storage.{name}.id", message, "remove one of the two")
        elif storage.id:
            owners[storage.id] = name


def scratch(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        if f"{storage.mount}/".startswith(f"{LOCAL}/"):
            message = f"'{storage.mount}' belongs to the node's own disks; taken, with all below: {LOCAL}"
            fix = f"mount it elsewhere, for example `mount: /mnt/{name}`"
            yield error("scratch_mount", f"storage.{name}.mount", message, fix)


def _fix(storage: Storage, field: str) -> str:
    if field == "throughput":
        return "write for example `throughput: 250`"
    smallest = EFA_SMALLEST_GB[throughput(storage)] if storage.efa else SMALLEST_GB
    return f"write for example `size_gb: {max(smallest, -(-size_gb(storage) // STEP_GB) * STEP_GB)}`"


def _said(storage: Storage, field: str) -> str:
    value = getattr(storage, field)
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
