"""`muster setup-phases`: print the setup phases and options that a stack needs on this machine, for the Makefile."""

from __future__ import annotations

from typing import Any, get_args

from cluster.spec.issue import SpecError
from cluster.spec.model import SlurmRelease, Software
from cluster.spec.stack_file import cluster_of
from infra.targets.registry import setup_phases
from muster.commands.stacks import require_stack_file


def print_setup_phases(name: str, slurm: str | None = None) -> None:
    """Print the phases on one line; an empty line means all, as for an invalid stack file, which `up` reports.

    With `slurm`, the image of that release is built, or of the newest, instead of that in the stack file.
    """
    try:
        cluster = cluster_of(require_stack_file(name, offline=True).file)
    except SpecError:
        cluster = {}
    target = cluster.get("target") if isinstance(cluster, dict) else None
    phases = setup_phases(target) if isinstance(target, str) else ()
    print(" ".join([*phases, *([] if phases else _choose_image(slurm or _read_release(cluster)))]))


def _read_release(cluster: Any) -> Any:
    software = cluster.get("software") if isinstance(cluster, dict) else None
    return software.get("slurm") if isinstance(software, dict) else None


def _choose_image(release: Any) -> list[str]:
    """Return the option that selects a release of Slurm other than the default."""
    releases = get_args(SlurmRelease)
    chosen = releases[-1] if release == "newest" else release
    return ["--slurm", chosen] if chosen in releases and chosen != Software().slurm else []
