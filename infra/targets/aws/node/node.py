"""`python -m infra.targets.aws.node.node`: this machine becomes the node it is to be, and says how that went."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bootstrap import node_bundle
from bootstrap.carry_out import carry_out
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect
from bootstrap.plan import plan
from bootstrap.progress import Event
from bootstrap.steps import order
from bootstrap.steps.step import Step
from bootstrap.transport.base import TransportError
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Cloud, Inventory, Node
from cluster.inventory import parameters as names
from cluster.spec import ClusterSpec
from infra.targets.aws.node import early, identity, parameters
from infra.targets.aws.node.check import STEP as VERIFY
from infra.targets.aws.node.check import check

ROOT = Path(__file__).resolve().parents[4]
LAUNCHER = "infra.targets.aws.launcher"
REPORTED = 3
"""Exit code of a failure that was reported already."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.targets.aws.node.node", description=__doc__)
    parser.add_argument("--bundle", required=True, help="digest of the bundle that this is")
    options = parser.parse_args(argv)
    inventory = Inventory.model_validate_json((ROOT / node_bundle.INVENTORY).read_text())
    cloud = Cloud.model_validate_json((ROOT / node_bundle.CLOUD).read_text())
    me = identity.identify(inventory)
    reporter = Reporter(cloud.region, names.node(inventory.cluster, me.name), options.bundle)
    try:
        bring_up(me, _desired(me, inventory, cloud), reporter)
    except (BootstrapError, TransportError) as problem:
        step = problem.step if isinstance(problem, BootstrapError) else "apply"
        print(f"muster: failed: {problem}", file=sys.stderr, flush=True)
        reporter.say("failed", step, str(problem))
        return REPORTED
    reporter.say("ready", VERIFY, "")
    print(f"muster: {me.name} is ready", flush=True)
    return 0


class Reporter:
    """Prints every step; the engine hears how it ended, and of a machine of which there is one also the way there."""

    def __init__(self, region: str, parameter: str, bundle: str) -> None:
        self._region, self._parameter, self._bundle = region, parameter, bundle

    def __call__(self, event: Event) -> None:
        print(f"muster: {event.step} {event.state} {event.detail}".rstrip(), flush=True)

    def say(self, state: str, step: str, line: str) -> None:
        said = {"bundle": self._bundle, "state": state, "step": step, "line": line}
        early.report(self._region, self._parameter, said)


def bring_up(me: Node, desired: Desired, reporter: Reporter) -> None:
    transport = LocalTransport()
    for stage in (order.MACHINE, order.own(me.role)):
        # Hundreds of compute nodes that told of each stage would use up what AWS allows an account per second.
        if me.role != "compute":
            reporter.say("working", stage[0].name, f"{len(stage)} steps to go")
        _apply(transport, me, desired, stage, reporter)
    check(transport, me, desired)


def _apply(transport: LocalTransport, me: Node, desired: Desired, stage: Sequence[Step], report: Reporter) -> None:
    facts = collect(transport, me, desired)
    planned = plan({me.name: facts}, desired)[me.name]
    carry_out(transport, me.name, [planned[step.name] for step in stage if step.name in planned], report)


def _desired(me: Node, inventory: Inventory, cloud: Cloud) -> Desired:
    public_key = (ROOT / node_bundle.PUBLIC_KEY).read_text().strip()
    secrets = parameters.secrets(cloud.region, inventory.cluster, me.role, public_key)
    spec = ClusterSpec.model_validate_json((ROOT / node_bundle.SPEC).read_text())
    desired = Desired(identity.joined(inventory, me), spec, secrets, ROOT, cloud=cloud)
    if me.role != "controller" or not inventory.sets:
        return desired
    return replace(desired, fleet=parameters.fleet(cloud), launcher=LAUNCHER)


if __name__ == "__main__":
    sys.exit(main())
