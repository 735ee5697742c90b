"""The node image with a newer release of Slurm: a layer on the node image, built only if `--slurm` asks for it."""

import os
import tempfile
from pathlib import Path

from setup import pins
from setup.facts import Facts
from setup.image import PROXIES, digest, pack_context, read_label
from setup.paths import Paths
from setup.run import ask, run


def is_current(paths: Paths) -> bool:
    """Return whether the image was built from these sources on the present node image."""
    return read_label(pins.SLURM_IMAGE, "muster.hash") == _digest(paths)


def build(paths: Paths, _: Facts, log: Path) -> None:
    """Build the image on the node image, and remove the image that it replaces."""
    labels = ["--label", "muster.cache=image", "--label", f"muster.hash={_digest(paths)}"]
    proxies = [flag for name in PROXIES if name in os.environ for flag in ("--build-arg", name)]
    replaced = ask(["docker", "image", "inspect", "-f", "{{.Id}}", pins.SLURM_IMAGE]).out
    with tempfile.TemporaryFile() as archive:
        archive.write(pack_context(context_files(paths)))
        archive.seek(0)
        options = ["--force-rm", "--network", "host", "--build-arg", f"BASE={pins.NODE_IMAGE}", *labels, *proxies]
        run(
            ["docker", "build", *options, "-t", pins.SLURM_IMAGE, "-"],
            log,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            stdin=archive,
        )
    if replaced:
        # This fails, as it should, while a node still runs on the old image.
        ask(["docker", "image", "rm", replaced])


def context_files(paths: Paths) -> dict[str, bytes]:
    """Return the build context."""
    sources = paths.root / "setup" / f"slurm-{pins.SLURM}"
    return {path.name: path.read_bytes() for path in sorted(sources.iterdir())}


def _digest(paths: Paths) -> str:
    return digest(context_files(paths), read_label(pins.NODE_IMAGE, "muster.hash") or "")
