"""bundle: trainer and job scripts on the shared filesystem, swapped as a whole; a running job keeps the old one."""

from __future__ import annotations

import shlex

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

KEPT = 5


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    bundle = desired.bundle
    if facts.bundle == bundle.digest:
        return []
    store, link = shlex.quote(f"{desired.shared}/.bundles"), shlex.quote(f"{desired.shared}/muster")
    new = f"{store}/.new.$$"
    script = f"""\
mkdir -p {store} {new}
head -c {len(bundle.archive)} | tar -x -C {new} --no-same-owner
rm -rf {store}/{bundle.digest}
mv -T {new} {store}/{bundle.digest}
ln -sfn {store}/{bundle.digest} {link}.new
mv -fT {link}.new {link}
# Users cannot write bytecode here, and every rank would compile at every start; nobody waits for it.
nice python3 -m compileall -q {store}/{bundle.digest}/trainer >/dev/null 2>&1 </dev/null &
ls -1dt {store}/*/ | tail -n +{KEPT + 1} | xargs -r rm -rf"""
    fix = f"free space on {desired.shared}; {desired.shared}/muster must be muster's own link"
    return [Action(f"ship bundle {bundle.digest}", script, bundle.archive, fix=fix)]


STEP = Step("bundle", "trainer and job scripts", actions, roles=("controller",))
