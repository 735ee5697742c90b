"""What the processes that serve the engine have in common: with_program.py starts them as children of Pulumi."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import grpc

_SET_PARENT_DEATH_SIGNAL = 1
_ANY_PORT = "127.0.0.1:0"


def start_server(server: grpc.Server, descriptor: int) -> None:
    """Start a server on loopback, and write its port to the descriptor; it ends when the engine does."""
    # The engine is the parent process. Only the engine handles an interrupt, and it may be killed.
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    port = server.add_insecure_port(_ANY_PORT)
    server.start()
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(str(port))


def enter_program(program: Path) -> None:
    """Make the program's folder the working directory and the first place of modules, as Pulumi does."""
    os.chdir(program)
    sys.path.insert(0, str(program))
