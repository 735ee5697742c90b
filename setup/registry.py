"""The phases of setup, in the order of the summary, and their dependencies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from setup import apt, engine, env, image, pulumi, slurm_image, venv
from setup.facts import Facts
from setup.paths import Paths


@dataclass(frozen=True)
class Phase:
    """One step of setup: a check whether its result exists, and the work that creates it."""

    name: str
    is_done: Callable[[Paths, Facts], bool]
    run: Callable[[Paths, Facts, Path], None]


PHASES = (
    Phase("apt", lambda _, facts: not apt.packages(facts), apt.install),
    Phase("venv", lambda paths, _: venv.is_current(paths), venv.install),
    Phase("pulumi", lambda paths, _: pulumi.is_installed(paths), pulumi.install),
    Phase("docker", lambda _, facts: facts.engine.state == "running", engine.start),
    Phase("kernel", lambda _paths, _facts: engine.limits_are_raised(), engine.raise_limits),
    Phase("image", lambda paths, _: image.is_current(paths), image.build),
    Phase("env", lambda paths, _: env.is_filled(paths), env.fill),
    Phase("slurm", lambda paths, _: slurm_image.is_current(paths), slurm_image.build),
)
NAMES = tuple(phase.name for phase in PHASES)


def dependencies(facts: Facts) -> Mapping[str, tuple[str, ...]]:
    """Return the phases that each phase depends on.

    venv and pulumi wait for apt only if it installs something they need: downloads start at once, and the build of
    Pulumi, which takes longest, runs while the image and the training environment are downloaded.
    """
    return {
        "apt": (),
        "venv": ("apt",) if "ensurepip" in facts.lacking else (),
        "pulumi": ("apt",) if facts.builds_pulumi and "go" in facts.lacking else (),
        "docker": ("apt",),
        "kernel": (),
        "image": ("apt", "docker"),
        # The layer is built while the environment, which takes longer, is downloaded.
        "slurm": ("image",),
        # The environment is filled from the package index that the virtual environment's pip is configured for.
        "env": ("image", "venv"),
    }
