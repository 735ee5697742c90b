"""The Debian base of the node image: the official image if it can be pulled, else debootstrap's."""

import shutil
from pathlib import Path

from setup import apt_sources, pins
from setup.distribution import distribution
from setup.paths import Paths
from setup.run import Failed, ask, run
from setup.scratch import fresh

KINDS = ("official", "debootstrap")
LABEL = "muster.base"
PULL_S = 90.0
OFFER_S = 15.0


def ensure(paths: Paths, log: Path) -> str:
    """Which kind of base there now is; the one that is there is kept."""
    there = ask(["docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{LABEL}"}}}}', pins.BASE_IMAGE])
    if there.code == 0:
        return "debootstrap" if there.out == "debootstrap" else "official"
    if pull(log):
        run(["docker", "tag", pins.OFFICIAL_BASE, pins.BASE_IMAGE], log)
        return "official"
    with fresh(paths, "base") as scratch:
        bootstrap(scratch / "root", log)
        pack(scratch / "root", log)
    return "debootstrap"


def offered() -> bool:
    """Whether it could be pulled, without pulling it."""
    return _there() or ask(["docker", "manifest", "inspect", pins.OFFICIAL_BASE], timeout=OFFER_S).code == 0


def pull(log: Path) -> bool:
    if _there():
        return True
    try:
        run(["docker", "pull", pins.OFFICIAL_BASE], log, timeout=PULL_S)
    except Failed:
        return False
    return True


def bootstrap(root: Path, log: Path) -> None:
    """A minimal Debian. Where the host's mirrors do not carry it (Ubuntu), debootstrap's own default is used."""
    if shutil.which("debootstrap") is None:
        raise Failed(f"{pins.OFFICIAL_BASE} cannot be pulled and debootstrap is not installed", log)
    here = distribution()
    found = apt_sources.mirrors(apt_sources.read(), here.codename, pins.SUITE) if here.name == "debian" else None
    keyring = ["--keyring", found.main.keyring] if found and found.main.keyring else []
    mirror = [found.main.uri] if found else []
    argv = ["debootstrap", "--variant=minbase", "--include=ca-certificates", *keyring, pins.SUITE, str(root), *mirror]
    # In a mount namespace of its own: what debootstrap mounts goes with it, however it ends.
    run(["unshare", "--mount", *argv], log)
    if found:
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
        (root / "etc/apt/sources.list.d/debian.sources").write_text(apt_sources.render(found))
        for source in filter(None, (found.main, found.updates, found.security)):
            _hand_over(source.keyring, root)


def pack(root: Path, log: Path) -> None:
    labels = f'--change "LABEL {LABEL}=debootstrap" --change "LABEL muster.cache=image"'
    pipe = f'tar -C "$0" --numeric-owner -c . | docker import {labels} - "$1"'
    run(["bash", "-o", "pipefail", "-c", pipe, root, pins.BASE_IMAGE], log)


def _there() -> bool:
    return ask(["docker", "image", "inspect", pins.OFFICIAL_BASE]).code == 0


def _hand_over(keyring: str | None, root: Path) -> None:
    """A mirror signed with a key of its own: nodes must know that key too."""
    if keyring and not (root / keyring.lstrip("/")).exists():
        target = root / keyring.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(keyring, target)
