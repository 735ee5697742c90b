"""Compute nodes that Slurm launched: they set themselves up again after an `up` and a rotation of the Slurm key.

A machine reads the key from its parameter when it sets itself up. The bundle holds a digest of the key, so that the
report of a machine tells which key it has. Machines that are launched later read the key of their time.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence

from infra.resources.error import ResourceError
from infra.targets.aws import names
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import Instance, list_instances, translate_errors
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.node_reports import read_reports
from infra.targets.aws.send_command import Script, send_script
from infra.targets.target import Console, Deployment

# A machine with eight GPUs that has just been launched takes 20 minutes until it has set itself up.
TIMEOUT_S, _POLL_S = 1800.0, 5.0
_LOG = "/var/log/muster/node.log"


def wait_for_launched_nodes(
    deployment: Deployment,
    console: Console,
    timeout_s: float = TIMEOUT_S,
    poll_s: float = _POLL_S,
    *,
    starting: bool = True,
) -> None:
    """Let every running compute node apply the bundle of the last `up`; raise ResourceError if one does not.

    A node that its job has left, and that Slurm ends meanwhile, is not waited for. Without `starting`, nor are nodes
    that have not been ready yet: they may take long, or never be.
    """
    fleet = _read_fleet(deployment)
    deadline, notified = time.monotonic() + timeout_s, set[str]()
    with console.status("waiting for the nodes that Slurm has launched") as line:
        while True:
            instances, reports = _read_machines(deployment)
            outdated = find_outdated(instances, reports, fleet.bundle)
            if not starting:
                outdated = [each for each in outdated if each.id in notified or _was_ready(each, reports)]
            if not outdated:
                return
            line.update(f"waiting for {', '.join(instance.name or instance.id for instance in outdated)}")
            _check_failures(outdated, reports, fleet.bundle)
            if idle := [each.id for each in outdated if each.id not in notified and is_set_up(each, reports)]:
                _set_up_again(deployment, fleet, idle)
                notified.update(idle)
            if time.monotonic() > deadline:
                node = outdated[0].name or outdated[0].id
                what = f"it has not set itself up again within {timeout_s / 60:.0f} minutes"
                raise ResourceError(node, what, f"`muster ssh {node}` and read {_LOG}")
            time.sleep(poll_s)


def find_outdated(instances: Sequence[Instance], reports: Mapping[str, Report], bundle: str) -> list[Instance]:
    """Return the compute nodes that run or start, and do not report that they are ready with this bundle."""
    return [
        instance
        for instance in instances
        if instance.role == "compute"
        and instance.state in ("pending", "running")
        and not _is_ready(reports.get(instance.name), instance, bundle)
    ]


def is_set_up(instance: Instance, reports: Mapping[str, Report]) -> bool:
    """Return whether a machine has ended its set-up, with success or not: only then another one is started."""
    report = reports.get(instance.name)
    return report is not None and report.instance == instance.id and report.state in ("ready", "failed")


def _was_ready(instance: Instance, reports: Mapping[str, Report]) -> bool:
    report = reports.get(instance.name)
    return report is not None and (report.instance, report.state) == (instance.id, "ready")


def _is_ready(report: Report | None, instance: Instance, bundle: str) -> bool:
    return report is not None and (report.instance, report.state, report.bundle) == (instance.id, "ready", bundle)


def _check_failures(outdated: Sequence[Instance], reports: Mapping[str, Report], bundle: str) -> None:
    for instance in outdated:
        report = reports.get(instance.name)
        if report and (report.instance, report.state, report.bundle) == (instance.id, "failed", bundle):
            fix = f"`muster ssh {instance.name}` and read {_LOG}"
            raise ResourceError(instance.name, f"its set-up failed at {report.step}: {report.line}", fix)


def _read_machines(deployment: Deployment) -> tuple[list[Instance], dict[str, Report]]:
    region, cluster = deployment.region, deployment.cluster
    with translate_errors("the machines", region):
        return list_instances(region, cluster, deployment.stack), read_reports(create_client("ssm", region), cluster)


def _read_fleet(deployment: Deployment) -> Fleet:
    region = deployment.region
    with translate_errors("the fleet", region):
        account = deployment.account or create_client("sts", region).get_caller_identity()["Account"]
        bucket = names.bucket(deployment.cluster, account, region)
        return Fleet.model_validate_json(
            create_client("s3", region).get_object(Bucket=bucket, Key=parameters.FLEET)["Body"].read()
        )


def _set_up_again(deployment: Deployment, fleet: Fleet, instances: Sequence[str]) -> None:
    """Send machines the user data of new ones, which is the same for all groups."""
    region, option = deployment.region, fleet.groups[0].options[0]
    with translate_errors("the launch template", region):
        (version,) = create_client("ec2", region).describe_launch_template_versions(
            LaunchTemplateId=option.launch_template_id, Versions=[option.launch_template_version]
        )["LaunchTemplateVersions"]
        script = base64.b64decode(version["LaunchTemplateData"]["UserData"]).decode()
        for instance in instances:
            send_script(region, [instance], Script(script, TIMEOUT_S))
