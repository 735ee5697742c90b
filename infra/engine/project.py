"""The Pulumi project that `muster` runs: the tracked program with a copy of the stack file.

`pulumi stack init` and `pulumi up` write an encryption salt into the stack file, and only some commands can be told to
use another one. A project folder of our own per stack keeps the tracked file as it is.
"""

from __future__ import annotations

import re

import yaml

from infra.home import StackHome, private_folder

_SALT = re.compile(r"^encryptionsalt:.*$", re.MULTILINE)


def write(stack: StackHome) -> None:
    private_folder(stack.folder)
    stack.project.write_text(project_file(stack))
    before = stack.working_copy.read_text() if stack.working_copy.exists() else ""
    stack.working_copy.write_text(working_copy(stack.file.read_text() if stack.file.exists() else "", before))


def project_file(stack: StackHome) -> str:
    """The tracked Pulumi.yaml, seen from the stack's folder."""
    main = str(stack.home.repo / "infra")
    return yaml.safe_dump({"name": "muster", "runtime": "python", "main": main, "stackConfigDir": "."}, sort_keys=False)


def working_copy(tracked: str, before: str) -> str:
    """The tracked stack file with the salt of the last working copy; a salt of its own in the tracked file wins."""
    salt = _SALT.search(before)
    if _SALT.search(tracked) or salt is None:
        return tracked
    return f"{tracked.rstrip()}\n{salt[0]}\n"
