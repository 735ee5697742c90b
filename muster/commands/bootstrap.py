"""`muster bootstrap`: the steps once more over SSH, without Pulumi. A cluster that is right stays untouched."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

from bootstrap.apply import apply
from bootstrap.desired import Desired, Secrets
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event, emit
from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport, public_key
from cluster.inventory import Inventory
from infra.engine import lock, pulumi
from infra.engine.stop import BAD_INPUT, Stop
from infra.engine.typed import retyped, typed
from infra.home import StackHome
from infra.shell import read_inventory, target_of_inventory
from infra.targets.registry import parse_spec
from infra.targets.target import Pushes
from muster.commands import screen
from muster.commands.stacks import require_running_stack

RESOURCE = "SlurmCluster"


def bootstrap(name: str) -> None:
    stack = require_running_stack(name)
    inventory = read_inventory(stack)
    if not isinstance(target_of_inventory(inventory), Pushes):
        what = f"bootstrap: nodes on target {inventory.target} fetch what they become, nothing is pushed to them"
        raise Stop(what, f"`{typed('up', name)}` gives them what has changed", BAD_INPUT)
    made_from = read_inputs(pulumi.resources(stack), name)
    with lock.held(stack, "bootstrap", wait=False, say=screen.say):
        try:
            with screen.out().status("asking the nodes what they are"):
                outcome = apply(desired(stack, made_from), _connect(made_from), report)
        except (BootstrapError, TransportError) as problem:
            again = f"correct it, then `{typed('bootstrap', name)}` again"
            raise Stop(retyped(str(problem), name), again) from None
    screen.print_success(str(outcome))


def read_inputs(resources: list[dict[str, Any]], stack: str) -> dict[str, str]:
    """What the running cluster was bootstrapped from."""
    found = [resource["inputs"] for resource in resources if resource["type"].endswith(RESOURCE)]
    if not found:
        raise Stop("the stack has no Slurm cluster yet", typed("up", stack))
    return {key: plain(value) for key, value in found[0].items()}


def plain(value: Any) -> str:
    """Pulumi exports a secret as an object that holds its JSON."""
    return str(json.loads(value["plaintext"]) if isinstance(value, dict) and "plaintext" in value else value)


def desired(stack: StackHome, made_from: dict[str, str]) -> Desired:
    secrets = Secrets(
        base64.b64decode(made_from["slurm_key"]), made_from["db_password"], public_key(made_from["ssh_private_key"])
    )
    return Desired(
        Inventory.model_validate_json(made_from["inventory"]),
        parse_spec(made_from["spec"]),
        secrets,
        stack.home.repo,
    )


def report(event: Event) -> None:
    """Only what differs is worth a line."""
    emit(event)
    if event.state in ("changed", "failed"):
        screen.say(f"{event.node}: {event.step} {event.state} {event.detail}".rstrip())


def _connect(made_from: dict[str, str]) -> Any:
    return partial(SshTransport.connect, private_key=made_from["ssh_private_key"])
