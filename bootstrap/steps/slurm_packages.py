"""slurm: Slurm where the distribution has no release that fits: built once on the controller, taken by all."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import Action, digest
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.slurm_source import SOURCES
from bootstrap.steps.power import PYTHON, ROOT
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role, parameters

SCRIPT = (Path(__file__).parent.parent / "scripts" / "slurm-packages.sh").read_text()
# As the source's own packaging calls them; in the order of their dependencies.
NAMES: dict[Role, tuple[str, ...]] = {
    "controller": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmctld", "slurm-smd-slurmdbd"),
    "login": ("slurm-smd", "slurm-smd-client", "slurm-smd-sackd"),
    "compute": ("slurm-smd", "slurm-smd-client", "slurm-smd-slurmd"),
}
# Debian's number of the user slurm: files on a shared disk belong to the same one everywhere.
SLURM_UID = 64030
BUILD_S = 3600.0


def built_here(facts: Facts) -> bool:
    """Whether Slurm comes from our own build; Debian 13 has the release itself."""
    return facts.distribution.startswith("ubuntu")


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    source = SOURCES[desired.spec.software.slurm]
    if all(facts.packages.get(name, "").startswith(source.version) for name in NAMES[node.role]):
        return []
    cloud = desired.cloud
    key = digest(SCRIPT, source.sha256, facts.distribution)
    store = parameters.packages(key)
    objects = (
        [PYTHON, "-m", "infra.targets.aws.node.objects", cloud.region, cloud.bucket, store] if cloud else ["false"]
    )
    values = {
        "DO": "build" if node.role == "controller" else "wait",
        "KEY": key,
        "SOURCES": " ".join(source.addresses),
        "SHA256": source.sha256,
        "STORE": f"{desired.shared}/.packages",
        "NAMES": " ".join(NAMES[node.role]),
        "SLURM_UID": str(SLURM_UID),
        "OBJECTS": " ".join(objects),
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    run = f"cd {ROOT}\n{head}{SCRIPT}"
    title = f"install Slurm {source.version}"
    fix = "the log says which part failed; an image that has Slurm needs no build"
    log = "/var/cache/muster-slurm/build.log" if node.role == "controller" else "/var/log/apt/term.log"
    return [Action(title, run, timeout=BUILD_S, log=log, fix=fix, slow=True)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if built_here(facts) else "the distribution has it"


STEP = Step("slurm", "Slurm's packages, built once", actions, skip=skip)
