"""Run Pulumi with a program that program_host.py serves: `python -IS with_program.py PROGRAM pulumi COMMAND...`.

This process becomes Pulumi, so that signals, exit codes and the locks of a stack are those of Pulumi alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HOST = Path(__file__).with_name("program_host.py")


def main(program: str, *command: str) -> None:
    """Start the host of the program, and replace this process by the command with its address."""
    reader, writer = os.pipe()
    # -P: modules in the folder of the host have the names of others, such as `pulumi`.
    host = subprocess.Popen(
        ["python3", "-P", str(_HOST), program, str(writer)],
        pass_fds=(writer,),
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        address = pipe.read()
    if not address:
        sys.exit(host.wait())
    os.execvp(command[0], [*command, "--client", address])  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
