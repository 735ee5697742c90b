"""The Launcher of slurm.power on AWS: EC2 for machines, Route 53 for names, Systems Manager for reports, Budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from infra.targets.aws.launcher import instances
from infra.targets.aws.launcher.api import Answer, AwsApi
from infra.targets.aws.launcher.fleet import Fleet, FleetGroup, LaunchOption
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.node import parameters
from slurm.power.launcher import LaunchResult, Machine, MachineList, Option, Place, SetUpFailure, Spending, Unit

# Limits of one call: 1,000 records in a batch of Route 53, where an UPSERT counts twice; ids of
# DescribeInstanceTopology; names of GetParameters.
_RECORD_BATCH = 500
_TOPOLOGY_BATCH = 100
_REPORT_BATCH = 10
# A replaced node has another address: resolvers must not remember the old one for longer than a boot takes.
_RECORD_TTL_S = 15


@dataclass
class AwsLauncher:
    """The machines of one cluster on AWS."""

    fleet: Fleet
    api: AwsApi

    @classmethod
    def load(cls, path: Path) -> AwsLauncher:
        """Return the launcher of the fleet that the engine described in a file."""
        fleet = Fleet.model_validate_json(path.read_text())
        return cls(fleet, AwsApi(fleet.region))

    def group(self, name: str) -> FleetGroup:
        return self.fleet.group(name)

    def list_machines(self) -> MachineList:
        return instances.list_instances(self.api, self.fleet)

    def launch(self, options: Sequence[Option], units: Sequence[Unit], token: str) -> LaunchResult:
        # Callers have only the options that `group` gave them.
        return launch(self.api, self.fleet, cast(Sequence[LaunchOption], options), units, token)

    def terminate(self, machines: Iterable[Machine]) -> list[str]:
        return instances.terminate(self.api, machines)

    def publish_names(self, addresses: Mapping[str, str]) -> None:
        """Write A records; records of ended nodes stay until the next machine of that name or the zone's removal."""
        records = [_write_record(f"{name}.{self.fleet.domain}", address) for name, address in addresses.items()]
        for first in range(0, len(records), _RECORD_BATCH):
            batch = records[first : first + _RECORD_BATCH]
            changes = [{"Action": "UPSERT", "ResourceRecordSet": record} for record in batch]
            zone = self.fleet.hosted_zone_id
            self.api.call("route53", "change_resource_record_sets", HostedZoneId=zone, ChangeBatch={"Changes": changes})

    def read_places(self, machines: Sequence[str]) -> dict[str, Place]:
        places: dict[str, Place] = {}
        for first in range(0, len(machines), _TOPOLOGY_BATCH):
            batch = list(machines[first : first + _TOPOLOGY_BATCH])
            rows = self.api.pages("ec2", "describe_instance_topology", "Instances", InstanceIds=batch)
            places |= {row["InstanceId"]: tuple(row["NetworkNodes"]) for row in rows if row.get("NetworkNodes")}
        return places

    def read_set_up_failures(self, nodes: Sequence[str]) -> dict[str, SetUpFailure]:
        failures: dict[str, SetUpFailure] = {}
        for first in range(0, len(nodes), _REPORT_BATCH):
            node_of = {parameters.node(self.fleet.cluster, name): name for name in nodes[first : first + _REPORT_BATCH]}
            for parameter in self.api.call("ssm", "get_parameters", Names=list(node_of))["Parameters"]:
                # An unreadable one is of another release or forged: ResumeTimeout still ends the wait.
                report = parameters.parse_report(parameter["Value"])
                if report.state == "failed":
                    failures[node_of[parameter["Name"]]] = SetUpFailure(report.instance, report.step, report.line)
        return failures

    def read_spending(self) -> Spending | None:
        if not self.fleet.budget_name:
            return None
        account = self.api.call("sts", "get_caller_identity")["Account"]
        budget = self.api.call("budgets", "describe_budget", AccountId=account, BudgetName=self.fleet.budget_name)[
            "Budget"
        ]
        spent = budget.get("CalculatedSpend", {}).get("ActualSpend", {}).get("Amount", 0)
        return Spending(float(spent), float(budget["BudgetLimit"]["Amount"]))


def _write_record(name: str, address: str) -> Answer:
    return {"Name": name, "Type": "A", "TTL": _RECORD_TTL_S, "ResourceRecords": [{"Value": address}]}
