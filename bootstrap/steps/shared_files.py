"""The controller's files on the shared filesystem: trainer, job scripts and the Python training environment."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import Action
from bootstrap.changes import UNRECORDED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from bootstrap.training_environment import list_archives
from bootstrap.transport.base import require_size
from cluster.inventory import Node
from slurm.control.jobs import LIST_STARTS

SCRIPTS = Path(__file__).parent.parent / "scripts"
ENVIRONMENT_SCRIPT = SCRIPTS / "training-env.sh"
ENVIRONMENT_TIMEOUT_S = 1800.0
BUNDLE_SCRIPT = (SCRIPTS / "bundle-store.sh").read_text() + (SCRIPTS / "ship-bundle.sh").read_text()
BUNDLE_TIMEOUT_S = 60.0
BUNDLES_TO_KEEP = 5


def plan_bundle(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Replace trainer and job scripts as a whole; a running job continues with the files it started with."""
    bundle = desired.bundle
    if facts.bundle == bundle.digest:
        return []
    values = {
        "STORE": f"{desired.shared}/.bundles",
        "LINK": f"{desired.shared}/muster",
        "DIGEST": bundle.digest,
        "SIZE": str(len(bundle.archive)),
        "RETAINED": str(BUNDLES_TO_KEEP),
        "LIST_STARTS": LIST_STARTS,
    }
    script = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + BUNDLE_SCRIPT
    fix = f"free space on {desired.shared}; {desired.shared}/muster must be the link that muster created"
    title = f"ship bundle {bundle.digest}"
    return [Action(title, script, bundle.archive, BUNDLE_TIMEOUT_S, fix=fix, changes=UNRECORDED)]


def plan_environment(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Build the training environment, once per lock file and interpreter."""
    if facts.environment_complete:
        return []
    script, lock, archives = ENVIRONMENT_SCRIPT.read_bytes(), desired.lock, list_archives(desired.interpreter)
    python = ' "$folder/python"' if archives else ""
    run = (
        "folder=$(mktemp -d)\n"
        "trap 'rm -rf \"$folder\"' EXIT\n"
        f"{_receive('training-env.sh', script)}{_receive('lock', lock)}{_receive('python', archives)}"
        f'sh "$folder/training-env.sh" "$folder/lock" {shlex.quote(desired.environment)}{python} </dev/null'
    )
    data = script + lock + archives
    title = f"build {desired.environment}"
    return [Action(title, run, data, ENVIRONMENT_TIMEOUT_S, slow=True, changes=UNRECORDED)]


def _receive(name: str, data: bytes) -> str:
    """Return shell text that writes a file from the input: with a part of the lock, an environment lacks packages."""
    path = f'"$folder/{name}"'
    return f"head -c {len(data)} > {path}\n{require_size(path, len(data))}\n"


BUNDLE_STEP = Step("bundle", "trainer and job scripts", plan_bundle, roles=("controller",))
ENVIRONMENT_STEP = Step(
    "environment", "Python training environment of the lock file", plan_environment, roles=("controller",)
)
