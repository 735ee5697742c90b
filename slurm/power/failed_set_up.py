"""Nodes that are coming and whose machine has said that its set-up failed: nobody need wait for them any longer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError

from cluster.inventory import parameters
from cluster.inventory.parameters import Report
from slurm.power.cloud import Cloud
from slurm.power.findings import Finding
from slurm.power.instances import Found
from slurm.power.reasons import set_up_failed
from slurm.power.slurmctld import PowerNode

# Systems Manager hands out that many at once.
_BATCH = 10


def failed_set_ups(cloud: Cloud, cluster: str, found: Found, nodes: Mapping[str, PowerNode]) -> Iterator[Finding]:
    machines = found.named()
    coming = [name for name, node in nodes.items() if node.coming and not node.away and name in machines]
    for name, report in _reports(cloud, cluster, coming):
        # What an earlier machine of that name said is none of this one's.
        if report.state == "failed" and report.instance == machines[name].id:
            yield Finding("failed-set-up", name, set_up_failed(report.step, report.line), 0.0)


def _reports(cloud: Cloud, cluster: str, names: list[str]) -> Iterable[tuple[str, Report]]:
    for start in range(0, len(names), _BATCH):
        wanted = {parameters.node(cluster, name): name for name in names[start : start + _BATCH]}
        for said in cloud.call("ssm", "get_parameters", Names=list(wanted))["Parameters"]:
            try:
                yield wanted[said["Name"]], Report.model_validate_json(said["Value"])
            except ValidationError:
                continue  # of another release, or touched by hand: ResumeTimeout still ends the wait
