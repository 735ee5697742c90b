"""What machines on AWS find in their bundle: the generic cloud section, and where the cluster's bucket is."""

from __future__ import annotations

from bootstrap.bundle import INSTALLED_PYTHON
from cluster.catalog.interpreter import PYTHON
from cluster.inventory import Cloud, Filesystem, JobCredentials, PackageRepository
from infra.targets.aws.node.hooks import NodeHook

# The Amazon Time Sync Service answers on every instance, also without a route to the internet.
TIME_SERVER = "169.254.169.123"
SCRATCH_DISK_MODEL = "Amazon EC2 NVMe Instance Storage"
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
LUSTRE_CLIENT = PackageRepository(
    url="https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu",
    key_url="https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc",
    # Taken from a public project that enforces it; the pre-flight compares it with AWS's file (docs/release.md).
    fingerprint="9C36DD9C515F10DBC3AA835C5D5CCC3383A962E1",
)


# A session of an assumed role ends after an hour.
JOB_CREDENTIALS_INTERVAL_S = 600
JOB_CREDENTIALS_FOLDER = "/run/muster-jobs"


class AwsCloud(Cloud):
    """The cloud section of a cluster on AWS."""

    region: str
    bucket: str
    """Name of the bucket with the bundle, the fleet, and packages that the controller builds."""
    hooks: tuple[NodeHook, ...] = ()
    """Programs of the spec, in the order in which machines run them."""


def describe_cloud(  # noqa: PLR0913
    *,
    region: str,
    bucket: str,
    domain: str,
    state_volume: str | None = None,
    filesystems: tuple[Filesystem, ...] = (),
    jobs_role: str | None = None,
    hooks: tuple[NodeHook, ...] = (),
    image_fix: str = "",
) -> AwsCloud:
    """Return what the machines of a cluster must know about AWS."""
    return AwsCloud(
        region=region,
        bucket=bucket,
        domain=domain,
        state_volume=state_volume,
        filesystems=filesystems,
        hooks=hooks,
        time_server=TIME_SERVER,
        scratch_disk_model=SCRATCH_DISK_MODEL,
        lustre_client=LUSTRE_CLIENT,
        interpreter=PYTHON,
        package_store=package_store_command(region, bucket),
        log_shipper=(INSTALLED_PYTHON, "-m", "infra.targets.aws.node.ship_logs", region, bucket),
        job_credentials=_describe_job_credentials(region, jobs_role) if jobs_role else None,
        interruption_watch=(INSTALLED_PYTHON, "-m", "infra.targets.aws.node.spot_notice"),
        image_fix=image_fix,
    )


def package_store_command(region: str, bucket: str) -> tuple[str, ...]:
    """Return the command with which machines share archives; a name, `fetch` or `store` and a path follow."""
    return (INSTALLED_PYTHON, "-m", "infra.targets.aws.node.package_store", region, bucket)


def _describe_job_credentials(region: str, role: str) -> JobCredentials:
    program = (INSTALLED_PYTHON, "-m", "infra.targets.aws.node.job_credentials")
    return JobCredentials(
        command=(*program, region, role, JOB_CREDENTIALS_FOLDER),
        interval_s=JOB_CREDENTIALS_INTERVAL_S,
        environment={"AWS_CONFIG_FILE": f"{JOB_CREDENTIALS_FOLDER}/config"},
    )
