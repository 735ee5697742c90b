"""Rules about filesystems on AWS: sizes and speeds on offer, fields of each kind, and mount points."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.catalog.lustre import EFA_SMALLEST_GB, SMALLEST_GB, STEP_GB, find_problems, size_gb, throughput
from cluster.spec import ClusterSpec, Storage
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.network import zones
from infra.targets.aws.spec import aws_section

LUSTRE = "fsx-lustre"
# Kinds that have a field; all have `mount`, `kind` and `keep`.
KINDS_BY_FIELD = {
    "size_gb": (LUSTRE,),
    "throughput": (LUSTRE,),
    "efa": (LUSTRE,),
    "s3": (LUSTRE,),
    "id": ("existing",),
    "backup_days": (LUSTRE, "efs"),
    "from_backup": (LUSTRE,),
}
# The plan that EFS has for automatic backups (docs.aws.amazon.com/efs/latest/ug/awsbackup.html).
EFS_BACKUP_DAYS = 35
# docs.aws.amazon.com/fsx/latest/APIReference/API_Backup.html
BACKUP = re.compile(r"backup-[0-9a-f]{8,}")
FILE_SYSTEM = re.compile(r"fs-([0-9a-f]{8}|[0-9a-f]{17})")
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.*'()/-]*)?")
# The instance store of a node is mounted here.
SCRATCH = "/local"


def check_fields(spec: ClusterSpec) -> Iterator[Issue]:
    """Report fields that have no effect on the kind of storage."""
    for name, storage in spec.storage.items():
        for field, kinds in KINDS_BY_FIELD.items():
            if getattr(storage, field) and storage.kind not in kinds and storage.kind != "volume":
                message = (
                    f"{_format_value(storage, field)} has no effect on kind '{storage.kind}'; kinds that have "
                    f"it: {', '.join(kinds)}"
                )
                fix = f"remove it, or write `kind: {kinds[0]}`"
                yield error("storage_field", f"storage.{name}.{field}", message, fix)


def check_lustre(spec: ClusterSpec) -> Iterator[Issue]:
    """Report sizes and throughputs that FSx for Lustre does not offer."""
    for name, storage in spec.storage.items():
        if storage.kind != LUSTRE:
            continue
        for field, message in find_problems(storage):
            yield error(f"lustre_{field}", f"storage.{name}.{field}", message, _suggest(storage, field))


def check_lustre_efa_step(spec: ClusterSpec) -> Iterator[Issue]:
    """Report sizes with EFA that are not a multiple of the step.

    docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html
    """
    for name, storage in spec.storage.items():
        step = EFA_SMALLEST_GB.get(throughput(storage))
        if storage.kind == LUSTRE and storage.efa and step and size_gb(storage) > step and size_gb(storage) % step:
            message = f"{size_gb(storage)} is not sold with EFA at {throughput(storage)}; allowed: a multiple of {step}"
            nearest = -(-size_gb(storage) // step) * step
            yield error("lustre_efa_step", f"storage.{name}.size_gb", message, f"write `size_gb: {nearest}`")


def check_lustre_efa_clients(spec: ClusterSpec) -> Iterator[Issue]:
    """Report EFA on a filesystem of a cluster without EFA nodes."""
    if any(group.fabric == "efa" for group in spec.groups.values()):
        return
    for name, storage in spec.storage.items():
        if storage.kind == LUSTRE and storage.efa:
            message = "true has no effect: no group has fabric efa, and it cannot be switched off later"
            yield error("lustre_efa_clients", f"storage.{name}.efa", message, "remove it, or write `fabric: efa`")


def check_lustre_zone(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about groups outside the single zone of a Lustre filesystem, which is the controller's."""
    if aws_section(spec) is None or spec.network.vpc_id:
        return
    first = zones(spec)[0]
    others = {zone for group in spec.groups.values() for zone in group.capacity.zones or zones(spec)} - {first}
    for name, storage in spec.storage.items():
        if storage.kind == LUSTRE and others:
            message = f"is in {first}: reads from {', '.join(sorted(others))} are slower and cost 0.01 USD per GB"
            yield warning("lustre_zone", f"storage.{name}", message, f"keep the groups in {first}, or use EFS")


def check_s3_location(spec: ClusterSpec) -> Iterator[Issue]:
    """Report malformed S3 locations."""
    for name, storage in spec.storage.items():
        if storage.s3 is not None and not S3.fullmatch(storage.s3):
            message = f"'{storage.s3}' is not an S3 location; allowed: s3:// and a bucket, with or without a prefix"
            yield error("s3_format", f"storage.{name}.s3", message, "write for example `s3: s3://my-data/corpus`")


def check_backup_days(spec: ClusterSpec) -> Iterator[Issue]:
    """Report backups that AWS does not offer: other periods of EFS, and of Lustre with a bucket.

    docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
    """
    for name, storage in spec.storage.items():
        days, where = storage.backup_days, f"storage.{name}.backup_days"
        if storage.kind == "efs" and days not in (None, EFS_BACKUP_DAYS):
            message = f"{days} is not offered for kind 'efs'; allowed: {EFS_BACKUP_DAYS}"
            yield error("efs_backup_days", where, message, f"write `backup_days: {EFS_BACKUP_DAYS}`, or remove it")
        if storage.kind == LUSTRE and days and storage.s3:
            message = f"{days} cannot be combined with s3: FSx does not back up a filesystem that is linked to a bucket"
            fix = "remove it: new and changed files are copied to the bucket; versioning of the bucket keeps older ones"
            yield error("lustre_backup_s3", where, message, fix)


def check_backup_id(spec: ClusterSpec) -> Iterator[Issue]:
    """Report malformed ids of backups."""
    for name, storage in spec.storage.items():
        if storage.from_backup is not None and not BACKUP.fullmatch(storage.from_backup):
            message = f"'{storage.from_backup}' is not a backup id; allowed: backup- and at least 8 hexadecimal digits"
            fix = "write for example `from_backup: backup-0123456789abcdef0`"
            yield error("backup_format", f"storage.{name}.from_backup", message, fix)


def check_existing_filesystem(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a missing or malformed id of an existing filesystem, and `keep: false`."""
    for name, storage in spec.storage.items():
        where = f"storage.{name}.id"
        if storage.kind == "existing" and storage.id is None:
            message = "required with kind existing, but missing; expected the id of an FSx for Lustre or EFS filesystem"
            yield error("no_file_system", where, message, "add `id: fs-...`")
        elif storage.kind == "existing" and storage.id and not FILE_SYSTEM.fullmatch(storage.id):
            message = f"'{storage.id}' is not a filesystem id; allowed: fs- and 8 or 17 hexadecimal digits"
            yield error("file_system_format", where, message, "write for example `id: fs-0123456789abcdef0`")
        if storage.kind == "existing" and not storage.keep:
            message = "false has no effect: an existing filesystem is never removed"
            yield error("existing_kept", f"storage.{name}.keep", message, "remove it")


def check_existing_filesystem_network(spec: ClusterSpec) -> Iterator[Issue]:
    """Report existing filesystems of a cluster that creates its own VPC, from which nothing reaches them."""
    if spec.network.vpc_id:
        return
    for name, storage in spec.storage.items():
        if storage.kind == "existing" and storage.id:
            message = f"'{storage.id}' cannot be mounted: it is outside the VPC that the cluster creates"
            fix = "write its VPC and private subnets under network (`vpc_id`, `subnet_ids`)"
            yield error("existing_network", f"storage.{name}.id", message, fix)


def check_repeated_filesystem(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a filesystem that is mounted twice."""
    owners: dict[str, str] = {}
    for name, storage in spec.storage.items():
        if storage.id in owners:
            message = f"'{storage.id}' is already storage '{owners[storage.id]}'"
            yield error("file_system_twice", f"storage.{name}.id", message, "remove one of the two")
        elif storage.id:
            owners[storage.id] = name


def check_scratch_mount(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a mount point below the node's own scratch directory."""
    for name, storage in spec.storage.items():
        if f"{storage.mount}/".startswith(f"{SCRATCH}/"):
            message = f"'{storage.mount}' belongs to the node's own disks; reserved, with all paths below it: {SCRATCH}"
            fix = f"mount it elsewhere, for example `mount: /mnt/{name}`"
            yield error("scratch_mount", f"storage.{name}.mount", message, fix)


def _suggest(storage: Storage, field: str) -> str:
    if field == "throughput":
        return "write for example `throughput: 250`"
    smallest = EFA_SMALLEST_GB[throughput(storage)] if storage.efa else SMALLEST_GB
    return f"write for example `size_gb: {max(smallest, -(-size_gb(storage) // STEP_GB) * STEP_GB)}`"


def _format_value(storage: Storage, field: str) -> str:
    value = getattr(storage, field)
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
