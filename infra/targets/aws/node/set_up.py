"""Set this machine up as the node that its tag names, and report the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from bootstrap import bundle, restart
from bootstrap.bake import describe_contents, find_shortfall
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.execute import execute_steps
from bootstrap.facts.collect import collect_facts
from bootstrap.facts.model import Facts
from bootstrap.image_contents import RECORD, ImageRecord
from bootstrap.plan import plan_steps
from bootstrap.progress import Event
from bootstrap.steps import registry
from bootstrap.steps.cloud import lustre_client
from bootstrap.steps.step import Step
from bootstrap.transport.base import Transport, TransportError
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Inventory, Node, Role
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra.targets.aws.node import early, identity, parameters, ship_logs
from infra.targets.aws.node.check import STEP as VERIFY_STEP
from infra.targets.aws.node.check import USER_DATA, check_machine
from infra.targets.aws.node.cloud import AwsCloud
from infra.targets.aws.node.cluster_secrets import read_fleet, read_secrets
from infra.targets.aws.node.hooks import run_hooks, select_hooks

ROOT = Path(__file__).resolve().parents[4]
LAUNCHER = "infra.targets.aws.launcher"
EXIT_REPORTED = 3
"""Exit code of a failure that has already been reported."""
EXIT_RESTARTING = 4
TEST_TIMEOUT_S = 10.0
IMAGE_RECORD = Path(RECORD)


def main(argv: Sequence[str] | None = None) -> int:
    """Run set-up and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.targets.aws.node.set_up", description=__doc__)
    parser.add_argument("--bundle", required=True, help="digest of the bundle that contains this program")
    options = parser.parse_args(argv)
    inventory = Inventory.model_validate_json((ROOT / bundle.INVENTORY).read_text())
    cloud = AwsCloud.model_validate_json((ROOT / bundle.CLOUD).read_text())
    node = identity.identify(inventory)
    reporter = Reporter(cloud.region, parameters.node(inventory.cluster, node.name), options.bundle)
    try:
        if reason := set_up(node, _load_desired(node, inventory, cloud), cloud, reporter):
            restart_machine(LocalTransport(), reason, reporter)
            return EXIT_RESTARTING
    except (BootstrapError, TransportError) as error:
        step = error.step if isinstance(error, BootstrapError) else "apply"
        print(f"muster: failed: {error}", file=sys.stderr, flush=True)
        reporter.report("failed", step, str(error))
        # The machine may be terminated at once.
        with suppress(OSError, RuntimeError):
            ship_logs.ship(cloud.region, cloud.bucket, node.name)
        return EXIT_REPORTED
    reporter.report("ready", VERIFY_STEP, "")
    print(f"muster: {node.name} is ready", flush=True)
    return 0


class Reporter:
    """Prints every event; reports stages and the result to the engine through the node's parameter."""

    def __init__(self, region: str, parameter: str, bundle_digest: str) -> None:
        self._region, self._parameter, self._bundle_digest = region, parameter, bundle_digest

    def __call__(self, event: Event) -> None:
        print(f"muster: {event.step} {event.state} {event.detail}".rstrip(), flush=True)

    def report(self, state: str, step: str, line: str) -> None:
        """Write the state of the set-up to the node's parameter."""
        values = {"bundle": self._bundle_digest, "state": state, "step": step, "line": line}
        early.report(self._region, self._parameter, values)


def set_up(node: Node, desired: Desired, cloud: AwsCloud, reporter: Reporter) -> str:
    """Run the steps of the node's role in stages and check the result; return why the machine must restart first."""
    transport = LocalTransport()
    _describe_image(node, desired)
    start, configured = (select_hooks(cloud.hooks, when, node.role) for when in ("start", "configured"))
    run_hooks(start, node, cloud.region)
    facts: Facts | None = None
    for stage in _list_stages(node.role, hooks=bool(configured)):
        # Before the daemon that lets jobs run on the node.
        if stage == registry.MEMBERS:
            run_hooks(configured, node, cloud.region)
            facts = None
        # If hundreds of compute nodes reported each stage, they would exceed the account's request rate.
        if node.role != "compute":
            reporter.report("working", stage[0].name, f"{format_count(len(stage), 'step')} to go")
        facts = _run_stage(transport, node, desired, stage, reporter, facts=facts)
        if stage == registry.KERNEL and _has_chosen_kernel(transport):
            _run_stage(transport, node, desired, registry.WITH_KERNEL, reporter)
        if reason := restart.read_request(transport):
            return reason
    check_machine(transport, node, desired)
    if node.role == "controller":
        run_hooks(configured, node, cloud.region)
        _run_stage(transport, node, desired, registry.CHECKED, reporter)
    return ""


def _has_chosen_kernel(transport: LocalTransport) -> bool:
    """Return whether another kernel is to be installed with the packages."""
    return transport.run(f"test -e {lustre_client.CHOSEN}", timeout=TEST_TIMEOUT_S).code == 0


def _list_stages(role: Role, *, hooks: bool) -> list[Sequence[Step]]:
    """Return the stages of a role; facts are read for each, so that the last is divided only for hooks."""
    last = registry.select_after_machine(role)
    if not hooks or role == "controller":
        return [registry.KERNEL, registry.MACHINE, last]
    return [
        registry.KERNEL,
        registry.MACHINE,
        [step for step in last if step not in registry.MEMBERS],
        registry.MEMBERS,
    ]


def restart_machine(transport: Transport, reason: str, reporter: Reporter) -> None:
    """Report why the machine restarts, and restart it, also if the report fails: set-up reports again afterwards."""
    print(f"muster: {reason}", flush=True)
    try:
        reporter.report("working", "restart", reason)
    except RuntimeError as error:
        print(f"muster: the restart could not be reported: {error}", file=sys.stderr, flush=True)
    restart.restart(transport, USER_DATA)


def _run_stage(  # noqa: PLR0913  # what every stage needs, and what the one before has left
    transport: LocalTransport,
    node: Node,
    desired: Desired,
    stage: Sequence[Step],
    reporter: Reporter,
    *,
    facts: Facts | None = None,
) -> Facts | None:
    """Run the steps of a stage; return the facts if they still hold, because no step had anything to do.

    `facts` are those that an earlier stage has left as they were: a machine from a baked image has nothing to do in the
    first stage, and reading the same facts again would only delay the node.
    """
    facts = facts or collect_facts(transport, node.name, registry.build_probe(node, desired))
    planned = plan_steps({node.name: facts}, desired)[node.name]
    steps = [planned[step.name] for step in stage if step.name in planned]
    execute_steps(transport, node.name, steps, reporter)
    return None if any(step.actions for step in steps) else facts


def _describe_image(node: Node, desired: Desired) -> None:
    """Print whether the machine's image has everything; what it lacks is installed by the steps."""
    if not IMAGE_RECORD.exists():
        return
    try:
        record = ImageRecord.model_validate_json(IMAGE_RECORD.read_text())
    except ValidationError:
        print("muster: another version of muster built the image; what is missing is installed now", flush=True)
        return
    shortfall = find_shortfall(record, describe_contents(desired, (node.role,)))
    outcome = f"{shortfall}; what is missing is installed now" if shortfall else "nothing has to be installed"
    print(f"muster: image of {record.built}: {outcome}", flush=True)


def _load_desired(node: Node, inventory: Inventory, cloud: AwsCloud) -> Desired:
    public_key = (ROOT / bundle.PUBLIC_KEY).read_text().strip()
    spec = ClusterSpec.model_validate_json((ROOT / bundle.SPEC).read_text())
    alerts = bool(spec.alerts.webhook)
    secrets = read_secrets(cloud, inventory.cluster, node.role, public_key, alerts=alerts)
    desired = Desired(identity.add_node(inventory, node), spec, secrets, ROOT, cloud=cloud)
    if node.role != "controller" or not inventory.sets:
        return desired
    return replace(desired, fleet=read_fleet(cloud), launcher=LAUNCHER)


if __name__ == "__main__":
    sys.exit(main())
