"""The ready gate as a resource: its `ready` output exists once a job on all nodes has computed the right sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, State, emit
from bootstrap.transport.base import Completed
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Inventory
from infra.resources.properties import Properties, unknown
from slurm import gate

STEP = "gate"
# The gate has its own timeouts with better messages; these only end a connection that hangs.
ANSWER_S = 300.0
ANSWER_PER_NODE_S = 5.0


class ReadyGateProvider(ResourceProvider):
    """The provider of ReadyGate. Inputs: those of ReadyArgs; the private key is never stored."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        inventory = _inventory(props)
        return CreateResult(f"ready-{inventory.cluster}", _pass(props, proven=()))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        # Values that a preview does not have yet come from machines that are about to change.
        coming = unknown({key: news.get(key) for key in _DECISIVE})
        # Nodes that were left out may be back.
        away = bool((olds.get("ready") or {}).get("left_out"))
        return DiffResult(changes=coming or away or olds.get("fingerprint") != fingerprint(news))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_pass(news, proven=proven(olds, _inventory(news))))


@dataclass(frozen=True)
class ReadyArgs:
    """The inputs of the ready gate."""

    inventory: pulumi.Input[str]
    environment: pulumi.Input[str]
    """Path of the training environment on the nodes."""
    user: pulumi.Input[str]
    """The user who runs the job, not root, as for people's jobs."""
    applied: pulumi.Input[str]
    """Changes whenever bootstrap has changed the cluster's configuration."""
    ssh_private_key: pulumi.Input[str]


class ReadyGate(Resource, module="muster", name="ReadyGate"):
    """The proof that a cluster runs jobs across its nodes."""

    ready: pulumi.Output[dict[str, Any]]

    def __init__(self, name: str, args: ReadyArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(ReadyGateProvider(), name, {**vars(args), "ready": None, "fingerprint": None}, opts)


_DECISIVE = ("inventory", "environment", "user", "applied")


def fingerprint(props: Properties) -> str:
    """Return a hash of machines, groups, software and configuration: the gate runs again when it changes."""
    inventory = _inventory(props)
    nodes = sorted((n.name, n.group or "", n.machine_id, n.address, n.fabric) for n in inventory.nodes)
    what = [nodes, props["environment"], props["user"], props["applied"]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def proven(olds: Properties, new: Inventory) -> tuple[str, ...]:
    """Return the nodes that passed before on the same machines; nodes that were left out have to pass again."""
    ready = olds.get("ready") or {}
    passed = {*ready.get("tested", ()), *ready.get("proven_earlier", ())}
    before = {n.name: n.machine_id for n in _inventory(olds).compute if n.name in passed}
    return tuple(n.name for n in new.compute if before.get(n.name) == n.machine_id)


def _pass(props: Properties, proven: tuple[str, ...]) -> Properties:
    inventory = _inventory(props)
    transport = SshTransport.connect(inventory.controller, props["ssh_private_key"])
    try:
        run = _runner(transport, ANSWER_S + ANSWER_PER_NODE_S * len(inventory.compute))
        ready = gate.check(run, inventory, props["environment"], props["user"], _report, proven=proven)
    finally:
        transport.close()
    inputs = {key: props[key] for key in _DECISIVE}
    return inputs | {"fingerprint": fingerprint(props), "ready": ready.as_output()}


def _runner(transport: SshTransport, timeout: float) -> Callable[[str], Completed]:
    return lambda script: transport.run(script, timeout=timeout)


def _report(node: str, state: State, detail: str) -> None:
    emit(Event("ready", node, STEP, state, detail))


def _inventory(props: Properties) -> Inventory:
    return Inventory.model_validate_json(props["inventory"])
