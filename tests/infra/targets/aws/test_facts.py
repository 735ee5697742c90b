"""`muster status` on AWS: instances by tag, Slurm through Run Command, powered-off nodes in one row."""

from __future__ import annotations

import io
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError
from rich.console import Console

from cluster.inventory import Inventory, NodeSet
from infra.resources.error import ResourceError
from infra.targets.aws.cost import cost
from infra.targets.aws.facts import gather_facts
from infra.targets.facts import Facts, Machine, Slurm
from muster.commands import status
from tests.infra.targets.aws.specs import spec
from tests.moto_server import REGION, Moto
from tests.muster.test_commands_parts import node

SETS = (
    NodeSet(group="gpu", count=64, static=1, cpus=96, memory_mb=1_000_000),
    NodeSet(group="cpu", count=1, static=1, cpus=8, memory_mb=16_000),
)
INVENTORY = Inventory(cluster="c", target="aws", nodes=(node("controller", "controller"),), sets=SETS)
ANSWER = """\
gpu-[1-2]|allocated|none
gpu-3|down~|no capacity in us-east-1a
gpu-[4-64]|idle~|none
cpu-1|idle|none
---muster---
30|alice|gpu|RUNNING|1-02:00:00|2|gpu-[1-2]|train
---muster---
1
---muster---
slurmctld|active
slurmdbd|active
mariadb|active
---muster---
proctrack/cgroup
---muster---
closed
"""


def start_instance(aws: Moto, name: str, role: str, **tags: str) -> str:
    ec2 = aws.client("ec2")
    instance_tags = {"muster.cluster": "c", "muster.stack": "s", "muster.role": role, "muster.node": name, **tags}
    specification = [
        {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in instance_tags.items()]}
    ]
    response = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(response["Instances"][0]["InstanceId"])


def render_nodes(facts: Facts) -> tuple[dict[str, list[str]], list[str]]:
    """Return the cells of the table by node, and the broken nodes."""
    table, broken = status.build_nodes_table(facts)
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    rows: list[list[str]] = [line.split() for line in out.getvalue().splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}, broken


def test_machines_and_queue_are_shown(aws: Moto) -> None:
    start_instance(aws, "controller", "controller")
    for name in ("gpu-1", "gpu-2", "elsewhere-1"):
        start_instance(aws, name, "compute")
    aws.answer("squeue", ANSWER)
    facts = gather_facts(INVENTORY, REGION, "s")
    rows, broken = render_nodes(facts)
    assert {name: cells[:3] for name, cells in rows.items()} == {
        "controller": ["controller", "up", "2"],
        "gpu-1": ["compute", "gpu", "allocated"],
        "gpu-2": ["compute", "gpu", "allocated"],
        "gpu-3": ["compute", "gpu", "down~"],
        "cpu-1": ["compute", "cpu", "gone"],
        "gpu-[4-64]": ["compute", "gpu", "off"],
    }
    assert broken == ["gpu-3 (no capacity in us-east-1a)", "cpu-1 (machine gone)"]
    assert [(job.id, job.name, job.where) for job in facts.slurm.jobs] == [("30", "train", "gpu-[1-2]")]


def test_the_current_cost_counts_the_running_nodes() -> None:
    described = spec(
        groups={
            "gpu": {"instance_type": "g6.8xlarge", "min": 1, "max": 64},
            "cpu": {"instance_type": "m7i.large", "count": 1},
        }
    )
    nodes = [node(name).model_copy(update={"group": name.split("-")[0]}) for name in ("gpu-1", "gpu-2", "cpu-1")]
    states = {"gpu-1": "running", "gpu-2": "pending", "cpu-1": "gone", "controller": "running"}
    facts = Facts(
        INVENTORY, (INVENTORY.controller, *nodes), {name: Machine(state) for name, state in states.items()}, Slurm()
    )
    least, text = cost(described).usd_per_hour_min, status.describe_current_cost(described, facts)
    usd, nodes_up = text.split(" now, ")
    assert nodes_up == "with 2 compute nodes up"
    # Compared with the minimum: one more g6.8xlarge and one m7i.large less, each with its disk.
    assert float(usd) == pytest.approx(least + 2.0144 - 0.1008, abs=0.05)


def test_a_controller_without_an_answer_is_reported(aws: Moto) -> None:
    assert gather_facts(INVENTORY, REGION, "s").slurm.problem == "the controller's machine is gone"
    start_instance(aws, "controller", "controller")
    aws.answer("squeue", "", code=127, err="sh: sinfo: not found")
    facts = gather_facts(INVENTORY, REGION, "s")
    assert facts.slurm.problem == "sh: sinfo: not found"
    rows, broken = render_nodes(facts)
    assert rows["gpu-[2-64]"][2] == "off"
    assert broken == ["gpu-1 (machine gone)", "cpu-1 (machine gone)"]


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NoCredentialsError

    monkeypatch.setattr("infra.targets.aws.instances.create_client", refuse)
    with pytest.raises(ResourceError, match="machines cannot be queried in us-east-1: Unable to locate credentials"):
        gather_facts(INVENTORY, REGION, "s")
