"""The Pulumi project that `muster` runs: the tracked program with a copy of the stack file.

`pulumi stack init` and `pulumi up` write an encryption salt into the stack file, and only some commands have an option
for another file. A separate project folder per stack keeps the tracked file unchanged.
"""

from __future__ import annotations

import re

import yaml

from infra.home import StackHome, private_folder

_SALT = re.compile(r"^encryptionsalt:.*$", re.MULTILINE)


def write(stack: StackHome) -> None:
    """Write the project folder of a stack."""
    private_folder(stack.folder)
    stack.project.write_text(project_file(stack))
    before = stack.working_copy.read_text() if stack.working_copy.exists() else ""
    stack.working_copy.write_text(working_copy(stack.file.read_text() if stack.file.exists() else "", before))


def project_file(stack: StackHome) -> str:
    """Return the tracked Pulumi.yaml with paths that are valid in the stack's folder."""
    main = str(stack.home.repo / "infra")
    return yaml.safe_dump({"name": "muster", "runtime": "python", "main": main, "stackConfigDir": "."}, sort_keys=False)


def working_copy(tracked: str, before: str) -> str:
    """Return the tracked stack file with the salt of the last working copy, unless it has a salt itself."""
    salt = _SALT.search(before)
    if _SALT.search(tracked) or salt is None:
        return tracked
    return f"{tracked.rstrip()}\n{salt[0]}\n"
