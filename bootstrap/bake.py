"""Baking images: which actions install the contents, and what a machine that starts from an image still lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bootstrap.action import Action, digest
from bootstrap.bundle import INSTALLED, INSTALLED_PYTHON
from bootstrap.desired import Desired
from bootstrap.facts.collect import Probe
from bootstrap.facts.model import Facts
from bootstrap.image_contents import RECORD, ImageContents, ImageRecord
from bootstrap.plan import PlannedStep
from bootstrap.steps import packages, registry
from bootstrap.steps.daemon import DAEMONS
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

CLEANUP_SCRIPT = (Path(__file__).parent / "scripts" / "clean-image.sh").read_text()
CLEANUP_TIMEOUT_S = 120.0
# Otherwise every machine from the image compiles what it imports. A file that cannot be compiled is for another Python,
# but without an interpreter nothing is compiled.
COMPILE_SCRIPT = (
    f"test -x {INSTALLED_PYTHON} || {{ echo 'no program {INSTALLED_PYTHON}: nothing can be compiled' >&2; exit 1; }}\n"
    f'{INSTALLED_PYTHON} -m compileall -q -j 0 "$(readlink -f {INSTALLED}/venv)/lib" '
    "$([ ! -d /opt/muster/python ] || echo /opt/muster/python) || true"
)
COMPILE_TIMEOUT_S = 300.0
# An action is compared by what it does on a machine that has nothing yet.
_EMPTY_MACHINE = Facts(distribution="ubuntu 22.04", kernel="any")


def describe_contents(desired: Desired, roles: Sequence[Role]) -> ImageContents:
    """Return what an image for nodes of these roles of a cluster has to contain."""
    cloud = desired.cloud
    kinds = {filesystem.kind for filesystem in cloud.filesystems} if cloud else set()
    return ImageContents(
        roles=tuple(roles),
        slurm=desired.spec.software.slurm,
        filesystems=tuple(sorted(kinds)),
        lustre_client=cloud.lustre_client if cloud else None,
        package_store=cloud.package_store if cloud else (),
    )


def plan_image(facts: Facts, contents: ImageContents, steps: Sequence[Step] = ()) -> list[PlannedStep]:
    """Return the steps with the actions that install what the image lacks; by default all that such images have."""
    steps = steps or (registry.BAKED if contents.cloud else (packages.STEP,))
    return [PlannedStep(step, tuple(step.bake(facts, contents))) for step in steps if step.bake]


def find_faults(
    facts: Facts, contents: ImageContents, record: ImageRecord, has_program: Callable[[str], bool]
) -> list[str]:
    """Return what a machine that started from an image lacks, and what it has of the machine that built it."""
    missing = [action.title for step in plan_image(facts, contents) for action in step.actions]
    binaries = [name for role in contents.roles for name in DAEMONS[role]]
    faults = [
        *(f"it still needs: {title}" for title in missing),
        *(f"it has no {name}" for name in binaries if not has_program(name)),
        *(f"it has {path} of the machine that built it" for path in facts.files if path.startswith("/etc/muster/")),
    ]
    if record.digest != digest_contents(record.contents):
        faults.append(f"its record {RECORD} is of other contents")
    return faults


def build_image_probe(contents: ImageContents) -> Probe:
    """Return the probe that reads what the baked steps depend on, also packages of other steps, which they install."""
    nodes = [Node(name=r, role=r, address="", host_key="", machine_id="", cpus=1, memory_mb=1) for r in contents.roles]
    packages = dict.fromkeys(name for step in registry.ON_CLOUD for node in nodes for name in step.packages(node))
    return Probe(
        shared="/shared",
        homes="/shared/home",
        environment="/shared/env",
        packages=tuple(packages),
        units=("ssh",),
        controller=False,
        machine=True,
    )


def digest_contents(contents: ImageContents) -> str:
    """Return a digest that changes if anything that is installed, or how it is installed, changes."""
    anywhere = contents.model_copy(update={"package_store": ()})
    planned = plan_image(_EMPTY_MACHINE, anywhere)
    actions: list[Action] = [action for step in planned for action in step.actions]
    return digest(*(part for action in actions for part in (action.title, action.script, action.data)))


def find_shortfall(record: ImageRecord, expected: ImageContents) -> str:
    """Return why a machine from this image still has to install something; empty if it has everything."""
    if other_roles := [role for role in expected.roles if role not in record.contents.roles]:
        return f"it was built for {', '.join(record.contents.roles)}, not for {', '.join(other_roles)}"
    if missing_clients := [kind for kind in expected.filesystems if kind not in record.contents.filesystems]:
        return f"it has no client for {', '.join(missing_clients)}"
    if record.digest != digest_contents(record.contents):
        return "another version of muster built it"
    return ""
