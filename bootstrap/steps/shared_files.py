"""The controller's files on the shared filesystem: trainer, job scripts and the Python training environment."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from bootstrap.training_environment import list_archives
from cluster.inventory import Node

ENVIRONMENT_SCRIPT = Path(__file__).parent.parent / "scripts" / "training-env.sh"
ENVIRONMENT_TIMEOUT_S = 1800.0
BUNDLES_TO_KEEP = 5


def plan_bundle(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Replace trainer and job scripts as a whole; a running job continues with the files it started with."""
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
# Users cannot write bytecode here, so every rank would compile at every start. Nothing waits for this.
nice python3 -m compileall -q {store}/{bundle.digest}/trainer >/dev/null 2>&1 </dev/null &
ls -1dt {store}/*/ | tail -n +{BUNDLES_TO_KEEP + 1} | xargs -r rm -rf"""
    fix = f"free space on {desired.shared}; {desired.shared}/muster must be the link that muster created"
    return [Action(f"ship bundle {bundle.digest}", script, bundle.archive, fix=fix)]


def plan_environment(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Build the training environment, once per lock file and interpreter."""
    if facts.environment_complete:
        return []
    script, lock, archives = ENVIRONMENT_SCRIPT.read_bytes(), desired.lock, list_archives(desired.interpreter)
    python = ' "$folder/python"' if archives else ""
    run = (
        "folder=$(mktemp -d)\n"
        "trap 'rm -rf \"$folder\"' EXIT\n"
        f'head -c {len(script)} > "$folder/training-env.sh"\n'
        f'head -c {len(lock)} > "$folder/lock"\n'
        f'head -c {len(archives)} > "$folder/python"\n'
        f'sh "$folder/training-env.sh" "$folder/lock" {shlex.quote(desired.environment)}{python} </dev/null'
    )
    data = script + lock + archives
    return [Action(f"build {desired.environment}", run, data, ENVIRONMENT_TIMEOUT_S, slow=True)]


BUNDLE_STEP = Step("bundle", "trainer and job scripts", plan_bundle, roles=("controller",))
ENVIRONMENT_STEP = Step(
    "environment", "Python training environment of the lock file", plan_environment, roles=("controller",)
)
