"""The name under which a person has started the trainer, for usage lines. Imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path

MODULE_COMMAND = "python -m trainer"
MUSTER_COMMAND = "muster train"


def name_command(command: str = "") -> str:
    """Return how the trainer, or this command of it, is started, such as `muster train prepare`."""
    program = MUSTER_COMMAND if _is_started_by_muster(Path(sys.argv[0])) else MODULE_COMMAND
    return f"{program} {command}".rstrip()


def _is_started_by_muster(script: Path) -> bool:
    """Return whether the script is the `muster` command, or `python -m muster.cli`."""
    return script.name == "muster" or script.parts[-2:] == ("muster", "cli.py")
