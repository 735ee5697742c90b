"""`muster bootstrap`: run the bootstrap steps again over SSH, without Pulumi; only differences are changed."""

from __future__ import annotations

import base64
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
from infra.engine.access_restore import unwrap_secret
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.shell import read_inventory, target_of_inventory
from infra.targets.mixins import Pushes
from infra.targets.registry import parse_spec
from muster.commands import screen
from muster.commands.stacks import require_running_stack

RESOURCE = "SlurmCluster"


def bootstrap(name: str) -> None:
    """Configure the nodes of a running stack again, with the inputs of its last `up`."""
    stack = require_running_stack(name)
    inventory = read_inventory(stack)
    if not isinstance(target_of_inventory(inventory), Pushes):
        what = f"bootstrap: nodes on target {inventory.target} pull their configuration; it cannot be pushed to them"
        raise Stop(what, f"`{format_command('up', name)}` publishes the changes to them", BAD_INPUT)
    inputs = read_inputs(pulumi.resources(stack), name)
    with lock.held(stack, "bootstrap", wait=False, say=screen.say):
        try:
            with screen.out().status("reading facts from the nodes"):
                outcome = apply(build_desired(stack, inputs), _connect(inputs), report_event)
        except (BootstrapError, TransportError) as problem:
            again = f"fix it, then `{format_command('bootstrap', name)}` again"
            raise Stop(rewrite_commands(str(problem), name), again) from None
    screen.print_success(str(outcome))


def read_inputs(resources: list[dict[str, Any]], stack: str) -> dict[str, str]:
    """Return the inputs that the running cluster was bootstrapped with, from the resources of its Pulumi state."""
    clusters = [resource["inputs"] for resource in resources if resource["type"].endswith(RESOURCE)]
    if not clusters:
        raise Stop("the stack has no Slurm cluster yet", format_command("up", stack))
    return {key: str(unwrap_secret(value)) for key, value in clusters[0].items()}


def build_desired(stack: StackHome, inputs: dict[str, str]) -> Desired:
    """Return the desired state of the cluster from its bootstrap inputs."""
    secrets = Secrets(
        base64.b64decode(inputs["slurm_key"]), inputs["db_password"], public_key(inputs["ssh_private_key"])
    )
    return Desired(
        Inventory.model_validate_json(inputs["inventory"]),
        parse_spec(inputs["spec"]),
        secrets,
        stack.home.repo,
    )


def report_event(event: Event) -> None:
    """Record an event, and print it if it is a change or a failure."""
    emit(event)
    if event.state in ("changed", "failed"):
        screen.say(f"{event.node}: {event.step} {event.state} {event.detail}".rstrip())


def _connect(inputs: dict[str, str]) -> Any:
    return partial(SshTransport.connect, private_key=inputs["ssh_private_key"])
