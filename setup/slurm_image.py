"""The node image with the default release of Slurm: a layer on the node image, in which only Slurm differs."""

from pathlib import Path

from setup import pins
from setup.facts import Facts
from setup.image import build_layer, digest, read_label
from setup.paths import Paths
from setup.run import SetupError

# Debian's testing suite removes a release when it has a newer one.
_FALLBACK = (
    f"if the mirror no longer has Slurm {pins.SLURM}, use {pins.SLURM_RELEASES[0]}: add "
    f"`SLURM={pins.SLURM_RELEASES[0]}` to `make setup`, `make demo` and `make test`, and write "
    f'`software: {{slurm: "{pins.SLURM_RELEASES[0]}"}}` in the stack file'
)


def is_current(paths: Paths) -> bool:
    """Return whether the image was built from these sources on the present node image."""
    return read_label(pins.SLURM_IMAGE, "muster.hash") == _digest(paths)


def build(paths: Paths, _: Facts, log: Path) -> None:
    """Build the image on the node image, and remove the image that it replaces."""
    try:
        build_layer(pins.SLURM_IMAGE, pins.NODE_IMAGE, context_files(paths), _digest(paths), log)
    except SetupError as error:
        raise SetupError(f"{error.args[0]}\n  {_FALLBACK}", error.log) from None


def context_files(paths: Paths) -> dict[str, bytes]:
    """Return the build context."""
    sources = paths.root / "setup" / f"slurm-{pins.SLURM}"
    return {path.name: path.read_bytes() for path in sorted(sources.iterdir())}


def _digest(paths: Paths) -> str:
    return digest(context_files(paths), read_label(pins.NODE_IMAGE, "muster.hash") or "")
