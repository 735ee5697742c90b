"""The Pulumi project that `muster` runs: the tracked program with a copy of the stack file.

`pulumi stack init` and `pulumi up` write an encryption salt into the stack file, and only some commands have an option
for another file. A separate project folder per stack keeps the tracked file unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.home import StackHome, private_folder

_SECRETS = re.compile(r"^(?:encryptionsalt|secretsprovider|encryptedkey):.*$", re.MULTILINE)


def write(stack: StackHome) -> None:
    """Write the project folder of a stack."""
    private_folder(stack.folder)
    stack.project.write_text(project_file(stack))
    before = stack.working_copy.read_text() if stack.working_copy.exists() else ""
    tracked = stack.file.read_text() if stack.file.exists() else ""
    stack.working_copy.write_text(working_copy(tracked, "\n".join(secrets_lines(stack.state)) or before))


def project_file(stack: StackHome) -> str:
    """Return the tracked Pulumi.yaml with paths that are valid in the stack's folder."""
    main = str(stack.home.repo / "infra")
    return yaml.safe_dump({"name": "muster", "runtime": "python", "main": main, "stackConfigDir": "."}, sort_keys=False)


def working_copy(tracked: str, before: str) -> str:
    """Return the tracked stack file with the salt or key of an earlier copy, unless it has them itself."""
    lines = list_encryption_lines(before)
    if _SECRETS.search(tracked) or not lines:
        return tracked
    return "\n".join([tracked.rstrip(), *lines, ""])


def list_encryption_lines(text: str) -> list[str]:
    """Return the lines of a stack file that name its salt or key."""
    return _SECRETS.findall(text)


def secrets_lines(state: Path) -> Iterator[str]:
    """Yield the lines of a stack file that its state has, too: another operator's machine has only the state."""
    try:
        provider: dict[str, Any] = json.loads(state.read_text())["checkpoint"]["latest"]["secrets_providers"]
        values = provider["state"]
        if provider["type"] == "passphrase":
            yield f"encryptionsalt: {values['salt']}"
        elif provider["type"] == "cloud":
            yield f"secretsprovider: {values['url']}"
            yield f"encryptedkey: {values['encryptedkey']}"
    except (OSError, ValueError, KeyError, TypeError):
        return
