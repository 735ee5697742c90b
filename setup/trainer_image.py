"""The trainer's own image, for nightly tests: trainer/Dockerfile on a base that trusts this machine's authorities.

pip verifies the package index with the certificates of the base. Where a proxy has a certificate of its own, the plain
base does not know its authority.
"""

import os
from pathlib import Path

from setup import pins
from setup.image import CERTIFICATES, PROXIES, build_layer, context_files, ensure_base, read_label
from setup.image import digest as image_digest
from setup.paths import Paths, exclusive_lock
from setup.run import run

_BASE_DOCKERFILE = b"""ARG BASE
FROM ${BASE}
COPY ca-certificates/ /usr/local/share/ca-certificates/
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && update-ca-certificates \\
 && rm -rf /var/lib/apt/lists/*
"""
BUILD_TIMEOUT_S = 60 * 60.0


def build(paths: Paths, log: Path) -> None:
    """Build the image; layers that are there already are not built again."""
    with exclusive_lock(paths.cache / "trainer-image.lock", lambda text: print(f"trainer-image: {text}", flush=True)):
        kind = ensure_base(paths, log)
        context = base_context(paths)
        content_hash = image_digest(context, kind)
        if read_label(pins.TRAINER_BASE_IMAGE, "muster.hash") != content_hash:
            build_layer(pins.TRAINER_BASE_IMAGE, pins.BASE_IMAGE, context, content_hash, log)
        proxies = [flag for name in PROXIES if name in os.environ for flag in ("--build-arg", name)]
        base = ["--build-arg", f"BASE={pins.TRAINER_BASE_IMAGE}"]
        # As in setup.image.build_layer.
        options = ["--network", "host", "--label", "muster.cache=image", *base, *proxies, "-t", pins.TRAINER_IMAGE]
        variables = {**os.environ, "DOCKER_BUILDKIT": "0"}
        run(["docker", "build", *options, paths.root / "trainer"], log, env=variables, timeout=BUILD_TIMEOUT_S)


def base_context(paths: Paths, certificates: Path = CERTIFICATES) -> dict[str, bytes]:
    """Return the build context of the base: its Dockerfile and this machine's additional authorities."""
    files = context_files(paths, certificates)
    authorities = {name: content for name, content in files.items() if name.startswith("ca-certificates/")}
    return {"Dockerfile": _BASE_DOCKERFILE, **authorities}
