"""The ready gate on AWS: the same job across the nodes as on every target, started through Run Command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, State, emit
from bootstrap.transport.base import Completed
from cluster.inventory import Inventory
from infra.resources import ready
from infra.resources.properties import Properties, unknown
from infra.targets.aws import run_command
from slurm import gate

# The first job reads the training environment from a cold network filesystem, and starts the GPUs' drivers.
_JOB_S = 300.0
_INPUTS = ("inventory", "environment", "user", "applied", "region")


class AwsGateProvider(ResourceProvider):
    """Pulumi provider of the gate; its inputs are GateArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"ready-{_inventory(props).cluster}", _run_gate(props, ()))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        coming = unknown({key: news.get(key) for key in _INPUTS})
        left_out = bool((olds.get("ready") or {}).get("left_out"))
        return DiffResult(changes=coming or left_out or olds.get("fingerprint") != ready.fingerprint(news))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_run_gate(news, ready.proven(olds, _inventory(news))))


@dataclass(frozen=True)
class GateArgs:
    """What the gate tests; it runs again if any of this changes."""

    inventory: pulumi.Input[str]
    """An Inventory as JSON, with all static nodes."""
    environment: pulumi.Input[str]
    """Folder of the training environment on the nodes."""
    user: str
    applied: pulumi.Input[str]
    """Changes whenever a node has set itself up again."""
    region: str


class AwsGate(Resource, module="muster", name="AwsReadyGate"):
    """The result of a job that ran across all static nodes."""

    ready: pulumi.Output[dict[str, Any]]

    def __init__(self, name: str, args: GateArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(AwsGateProvider(), name, {**vars(args), "ready": None, "fingerprint": None}, opts)


def _run_gate(props: Properties, proven: tuple[str, ...]) -> Properties:
    inventory = _inventory(props)
    controller = inventory.controller.machine_id
    timeout_s = _JOB_S + ready.ANSWER_S + ready.ANSWER_PER_NODE_S * len(inventory.compute)

    def run(script: str) -> Completed:
        return run_command.run(props["region"], controller, script, timeout_s)

    result = gate.check(run, inventory, props["environment"], props["user"], _report, proven=proven, job_s=_JOB_S)
    inputs = {key: props[key] for key in _INPUTS}
    return inputs | {"fingerprint": ready.fingerprint(props), "ready": result.as_output()}


def _report(node: str, state: State, detail: str) -> None:
    emit(Event("ready", node, ready.STEP, state, detail))


def _inventory(props: Properties) -> Inventory:
    return Inventory.model_validate_json(props["inventory"])
