"""`muster status` of a cluster on AWS: machines by tag, Slurm through Run Command, nodes that are off as one row."""

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
from tests.moto_server import REGION, Moto, aws, moto  # noqa: F401  # fixtures
from tests.muster.test_commands_parts import node

SETS = (
    NodeSet(group="gpu", count=64, static=1, cpus=96, memory_mb=1_000_000),
    NodeSet(group="cpu", count=1, static=1, cpus=8, memory_mb=16_000),
)
KNOWN = Inventory(cluster="c", target="aws", nodes=(node("controller", "controller"),), sets=SETS)
ANSWER = """\
gpu-[1-2]|allocated|none
gpu-3|down~|no capacity in us-east-1a
gpu-[4-64]|idle~|none
cpu-1|idle|none
---muster---
30|train|alice|gpu|RUNNING|1-02:00:00|2|gpu-[1-2]
---muster---
1
---muster---
slurmctld|active
slurmdbd|active
mariadb|active
"""


def start(aws: Moto, name: str, role: str, **tags: str) -> str:  # noqa: F811
    ec2 = aws.client("ec2")
    given = {"muster.cluster": "c", "muster.stack": "s", "muster.role": role, "muster.node": name, **tags}
    wanted = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in given.items()]}]
    made = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1, TagSpecifications=wanted)
    return str(made["Instances"][0]["InstanceId"])


def shown(facts: Facts) -> tuple[dict[str, list[str]], list[str]]:
    """Cells by node, and what is broken."""
    table, broken = status.build_nodes_table(facts)
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    rows: list[list[str]] = [line.split() for line in out.getvalue().splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}, broken


def test_machines_and_queue_are_shown(aws: Moto) -> None:  # noqa: F811
    start(aws, "controller", "controller")
    for name in ("gpu-1", "gpu-2", "elsewhere-1"):
        start(aws, name, "compute")
    aws.answer("squeue", ANSWER)
    facts = gather_facts(KNOWN, REGION, "s")
    rows, broken = shown(facts)
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


def test_the_cost_is_also_told_of_what_runs_now() -> None:
    described = spec(
        groups={
            "gpu": {"instance_type": "g6.8xlarge", "min": 1, "max": 64},
            "cpu": {"instance_type": "m7i.large", "count": 1},
        }
    )
    nodes = [node(name).model_copy(update={"group": name.split("-")[0]}) for name in ("gpu-1", "gpu-2", "cpu-1")]
    states = {"gpu-1": "running", "gpu-2": "pending", "cpu-1": "gone", "controller": "running"}
    facts = Facts(KNOWN, (KNOWN.controller, *nodes), {name: Machine(one) for name, one in states.items()}, Slurm())
    least, said = cost(described).usd_per_hour_min, status.describe_current_cost(described, facts)
    usd, words = said.split(" now, ")
    assert words == "with 2 compute nodes up"
    # One g6.8xlarge more than always exists, and one m7i.large less, each with its disk.
    assert float(usd) == pytest.approx(least + 2.0144 - 0.1008, abs=0.05)


def test_a_silent_controller_is_a_reason(aws: Moto) -> None:  # noqa: F811
    assert gather_facts(KNOWN, REGION, "s").slurm.problem == "the controller's machine is gone"
    start(aws, "controller", "controller")
    aws.answer("squeue", "", code=127, err="sh: sinfo: not found")
    facts = gather_facts(KNOWN, REGION, "s")
    assert facts.slurm.problem == "sh: sinfo: not found"
    rows, broken = shown(facts)
    assert rows["gpu-[2-64]"][2] == "off"
    assert broken == ["gpu-1 (machine gone)", "cpu-1 (machine gone)"]


def test_without_credentials_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NoCredentialsError

    monkeypatch.setattr("infra.targets.aws.instances.create_client", refuse)
    with pytest.raises(ResourceError, match="machines cannot be queried in us-east-1: Unable to locate credentials"):
        gather_facts(KNOWN, REGION, "s")
