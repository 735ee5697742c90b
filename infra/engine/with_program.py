"""Run Pulumi with a program and a provider that muster serves: `python -IS with_program.py PROGRAM pulumi COMMAND...`.

This process becomes Pulumi, so that signals, exit codes and the locks of a stack are those of Pulumi alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_ATTACHED = "PULUMI_DEBUG_PROVIDERS"


def main(program: str, *command: str) -> None:
    """Start the hosts, and replace this process by the command with their addresses."""
    reader = start_host("program_host.py", program, *([] if command[1] == "destroy" else ["ahead"]))
    provider = None if is_attached() else start_host("provider_host.py", program)
    if provider is not None:
        os.environ[_ATTACHED] = f"pulumi-python:{read_port(provider)}"
    os.execvp(command[0], [*command, "--client", f"127.0.0.1:{read_port(reader)}"])  # noqa: S606  # no shell is wanted


def is_attached() -> bool:
    """Return whether the caller serves providers itself."""
    return bool(os.environ.get(_ATTACHED))


def start_host(file: str, program: str, *options: str) -> int:
    """Start a host, and return the end of a pipe to which it writes its port."""
    reader, writer = os.pipe()
    # -P: modules in the folder of the hosts have the names of others, such as `pulumi`.
    subprocess.Popen(["python3", "-P", str(_FOLDER / file), program, str(writer), *options], pass_fds=(writer,))
    os.close(writer)
    return reader


def read_port(reader: int) -> str:
    """Return the port of a host; end if it has ended without one."""
    with os.fdopen(reader) as pipe:
        return pipe.read() or sys.exit("error: Python cannot serve the program; the log of this command says why")


if __name__ == "__main__":
    main(*sys.argv[1:])
