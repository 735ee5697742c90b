"""What machines on AWS find in their bundle: the generic cloud section, and where the cluster's bucket is."""

from __future__ import annotations

from bootstrap.bundle import INSTALLED_PYTHON
from cluster.catalog.interpreter import PYTHON
from cluster.inventory import Cloud, Filesystem, PackageRepository

METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254")
# The Amazon Time Sync Service answers on every instance, also without a route to the internet.
TIME_SERVER = "169.254.169.123"
SCRATCH_DISK_MODEL = "Amazon EC2 NVMe Instance Storage"
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
LUSTRE_CLIENT = PackageRepository(
    url="https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu",
    key_url="https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc",
)


class AwsCloud(Cloud):
    """The cloud section of a cluster on AWS."""

    region: str
    bucket: str
    """Name of the bucket with the bundle, the fleet, and packages that the controller builds."""


def describe_cloud(  # noqa: PLR0913
    *,
    region: str,
    bucket: str,
    domain: str,
    state_volume: str | None = None,
    filesystems: tuple[Filesystem, ...] = (),
    image_fix: str = "",
) -> AwsCloud:
    """Return what the machines of a cluster must know about AWS."""
    return AwsCloud(
        region=region,
        bucket=bucket,
        domain=domain,
        state_volume=state_volume,
        filesystems=filesystems,
        metadata_addresses=METADATA_ADDRESSES,
        time_server=TIME_SERVER,
        scratch_disk_model=SCRATCH_DISK_MODEL,
        lustre_client=LUSTRE_CLIENT,
        interpreter=PYTHON,
        package_store=(INSTALLED_PYTHON, "-m", "infra.targets.aws.node.package_store", region, bucket),
        image_fix=image_fix,
    )
