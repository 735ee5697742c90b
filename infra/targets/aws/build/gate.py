"""The ready gate on AWS: the same job across the nodes, asked for through Run Command instead of SSH."""

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

_DECISIVE = ("inventory", "environment", "user", "applied", "region")


class AwsGateProvider(ResourceProvider):
    """Inputs: GateArgs. The inventory has every node that always exists."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"ready-{_inventory(props).cluster}", _pass(props, ()))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        coming = unknown({key: news.get(key) for key in _DECISIVE})
        away = bool((olds.get("ready") or {}).get("left_out"))
        return DiffResult(changes=coming or away or olds.get("fingerprint") != ready.fingerprint(news))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_pass(news, ready.proven(olds, _inventory(news))))


@dataclass(frozen=True)
class GateArgs:
    inventory: pulumi.Input[str]
    environment: pulumi.Input[str]
    user: str
    applied: pulumi.Input[str]
    """Changes whenever the nodes were set up anew."""
    region: str


class AwsGate(Resource, module="muster", name="AwsReadyGate"):
    ready: pulumi.Output[dict[str, Any]]

    def __init__(self, name: str, args: GateArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(AwsGateProvider(), name, {**vars(args), "ready": None, "fingerprint": None}, opts)


def _pass(props: Properties, proven: tuple[str, ...]) -> Properties:
    inventory = _inventory(props)
    controller = inventory.controller.machine_id
    timeout_s = ready.ANSWER_S + ready.ANSWER_PER_NODE_S * len(inventory.compute)

    def run(script: str) -> Completed:
        return run_command.run(props["region"], controller, script, timeout_s)

    done = gate.check(run, inventory, props["environment"], props["user"], _report, proven=proven)
    kept = {key: props[key] for key in _DECISIVE}
    return kept | {"fingerprint": ready.fingerprint(props), "ready": done.as_output()}


def _report(node: str, state: State, detail: str) -> None:
    emit(Event("ready", node, ready.STEP, state, detail))


def _inventory(props: Properties) -> Inventory:
    return Inventory.model_validate_json(props["inventory"])
