"""What Slurm runs for each task of `--container`.

`python3 /etc/muster/container.pyz NAME BUNDLE ENVIRONMENT COMMAND...`, where ENVIRONMENT is a file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm.containers.error import ContainerError, explain_system_error
from slurm.containers.installed import SETTINGS
from slurm.containers.launch import Task, launch

CANNOT_START = 125
"""Exit code of a container that did not start, as that of other container programs."""


def main(arguments: Sequence[str]) -> int:
    """Start the container of a task; return only if it cannot start."""
    name, bundle, environment, *command = arguments
    try:
        task = Task(name, bundle, tuple(command), read_environment(environment), find_folder())
        launch(task, read_mounts(Path(SETTINGS)))
    except ContainerError as error:
        print(f"muster: {error}", file=sys.stderr)
    except OSError as error:
        print(f"muster: {explain_system_error(error, bundle)}", file=sys.stderr)
    return CANNOT_START


def find_folder() -> str:
    """Return the working folder of the step."""
    try:
        return os.getcwd()
    except OSError as error:
        what = f"the working folder of the step is gone ({error.strerror})"
        raise ContainerError(what, "choose another one with --chdir") from None


def read_mounts(settings: Path) -> list[str]:
    """Return the folders of the node that every container has."""
    try:
        mounts: list[str] = json.loads(settings.read_bytes())["mounts"]
    except (OSError, ValueError, KeyError) as error:
        what = f"the node's settings for containers, {settings}, cannot be read: {error!r}"
        raise ContainerError(what, "an admin runs `muster up`, which writes them") from None
    return mounts


def read_environment(path: str) -> dict[str, str]:
    """Return the variables of a step from Slurm's file; its programs themselves get those of slurmd."""
    try:
        entries = os.fsdecode(Path(path).read_bytes()).split("\0")
    except OSError as error:
        raise ContainerError(
            f"the step's environment cannot be read: {error}", "look at slurmd.log of the node"
        ) from None
    return {name: value for name, separator, value in (entry.partition("=") for entry in entries) if separator}
