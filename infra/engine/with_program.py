"""Run Pulumi with a program and a provider that muster serves: `python -IS with_program.py PROGRAM pulumi COMMAND...`.

This process becomes Pulumi, so that signals, exit codes and the locks of a stack are those of Pulumi alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_HOSTS = {"program": _FOLDER / "program_host.py", "provider": _FOLDER / "provider_host.py"}
_ATTACHED = "PULUMI_DEBUG_PROVIDERS"


def main(program: str, *command: str) -> None:
    """Start the hosts, and replace this process by the command with their addresses."""
    readers = {
        name: start_host(file, program) for name, file in _HOSTS.items() if name == "program" or not is_attached()
    }
    ports = {name: read_port(reader) for name, reader in readers.items()}
    if "provider" in ports:
        os.environ[_ATTACHED] = f"pulumi-python:{ports['provider']}"
    os.execvp(command[0], [*command, "--client", f"127.0.0.1:{ports['program']}"])  # noqa: S606  # no shell is wanted


def is_attached() -> bool:
    """Return whether the caller serves providers itself."""
    return bool(os.environ.get(_ATTACHED))


def start_host(file: Path, program: str) -> int:
    """Start a host, and return the end of a pipe to which it writes its port."""
    reader, writer = os.pipe()
    # -P: modules in the folder of the hosts have the names of others, such as `pulumi`.
    subprocess.Popen(["python3", "-P", str(file), program, str(writer)], pass_fds=(writer,))
    os.close(writer)
    return reader


def read_port(reader: int) -> str:
    """Return the port of a host; end if it has ended without one."""
    with os.fdopen(reader) as pipe:
        return pipe.read() or sys.exit("error: Python cannot serve the program; the lines above say why")


if __name__ == "__main__":
    main(*sys.argv[1:])
