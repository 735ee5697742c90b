"""Images for jobs: the scripts for the controller that receive a bundle on the shared filesystem, and publish it."""

from __future__ import annotations

import posixpath
import shlex
from pathlib import Path

from slurm.containers.bundle import CONFIG
from slurm.control.jobs import LIST_STARTS

_SCRIPTS = Path(__file__).parent / "scripts"
_STORE_SCRIPT = (_SCRIPTS / "bundle-store.sh").read_text()
_RECEIVE_SCRIPT = (_SCRIPTS / "receive-image.sh").read_text()
_PUBLISH_SCRIPT = (_SCRIPTS / "publish-image.sh").read_text()
FOLDER = "images"
IMAGES_TO_KEEP = 2
"""Versions of an image that stay whatever jobs run: the new one and the one before.

Older ones are deleted when the next image of this name is published, unless a job that may use them still runs then.
"""


def name_link(shared: str, name: str) -> str:
    """Return the path of a published image, which jobs give as `--container`."""
    return posixpath.join(shared, FOLDER, name)


def read_digest(shared: str, name: str) -> str:
    """Return the script that prints the digest of the published image; nothing if there is none."""
    return f"readlink {shlex.quote(name_link(shared, name))} | sed 's,.*/,,' || true"


def receive_image(shared: str, name: str, attempt: str) -> str:
    """Return the script that unpacks the files of an image from standard input into a folder of this attempt."""
    return _assign({"STORE": _name_store(shared, name), "ATTEMPT": attempt}) + _STORE_SCRIPT + _RECEIVE_SCRIPT


def publish_image(shared: str, name: str, attempt: str, digest: str, config: str) -> str:
    """Return the script that makes what was received the image of this name, for jobs that start from now on."""
    values = {
        "STORE": _name_store(shared, name),
        "LINK": name_link(shared, name),
        "ATTEMPT": attempt,
        "DIGEST": digest,
        "CONFIG": config,
        "CONFIG_NAME": CONFIG,
        "RETAINED": str(IMAGES_TO_KEEP),
        "LIST_STARTS": LIST_STARTS,
    }
    return _assign(values) + _STORE_SCRIPT + _PUBLISH_SCRIPT


def forget_attempt(shared: str, name: str, attempt: str) -> str:
    """Return the script that removes what an attempt has left."""
    left = f"{shlex.quote(_name_store(shared, name))}/.new.{attempt}"
    return f"rm -rf {left} {left}.link"


def _name_store(shared: str, name: str) -> str:
    """Return the folder with all versions of an image."""
    return posixpath.join(shared, FOLDER, f".{name}")


def _assign(values: dict[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
