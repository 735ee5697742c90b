"""The node image with a newer release of Slurm: a layer on the node image, built only if `--slurm` asks for it."""

from pathlib import Path

from setup import pins
from setup.facts import Facts
from setup.image import build_layer, digest, read_label
from setup.paths import Paths


def is_current(paths: Paths) -> bool:
    """Return whether the image was built from these sources on the present node image."""
    return read_label(pins.SLURM_IMAGE, "muster.hash") == _digest(paths)


def build(paths: Paths, _: Facts, log: Path) -> None:
    """Build the image on the node image, and remove the image that it replaces."""
    build_layer(pins.SLURM_IMAGE, pins.NODE_IMAGE, context_files(paths), _digest(paths), log)


def context_files(paths: Paths) -> dict[str, bytes]:
    """Return the build context."""
    sources = paths.root / "setup" / f"slurm-{pins.SLURM}"
    return {path.name: path.read_bytes() for path in sorted(sources.iterdir())}


def _digest(paths: Paths) -> str:
    return digest(context_files(paths), read_label(pins.NODE_IMAGE, "muster.hash") or "")
