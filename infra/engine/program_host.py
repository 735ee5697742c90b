"""Serve a Pulumi program to the engine: `python -P program_host.py PROGRAM DESCRIPTOR [ahead]`, see with_program.py.

Pulumi's own language host lists the installed packages with pip in every run, to find the plugins that they need, and
starts the program only then: that takes 1.2 s of processor time. Setup has installed the plugins, so this host names
none, and with `ahead` it imports the program's modules while Pulumi starts. Pulumi calls it like a program of its
Automation API. `pulumi destroy` asks for packages, too, but does not run the program.
"""

# Imports stand below the line that makes them faster.
# ruff: noqa: E402
from __future__ import annotations

import gc

# What is imported and created stays until the process is killed: looking for garbage would take a fifth of its time.
gc.disable()

import ast
import importlib
import queue
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc

from infra.engine.host_process import enter_program, start_server

_SERVICE = "pulumirpc.LanguageRuntime"
_THREADS = 4
# How Protocol Buffers encode a message without fields.
_EMPTY_MESSAGE = b""

Runs = queue.SimpleQueue[tuple[bytes, "Future[bytes]"]]
Method = Callable[[bytes, grpc.ServicerContext], bytes]


def main(program: Path, descriptor: int, *, ahead: bool) -> None:
    """Write the host's address to the descriptor, then run the program whenever the engine asks for it."""
    runs: Runs = queue.SimpleQueue()
    server = create_server(runs)
    enter_program(program)
    start_server(server, descriptor)
    if ahead:
        import_ahead(program / "__main__.py")
    while True:
        answer(program, *runs.get())


def answer(program: Path, request: bytes, response: Future[bytes]) -> None:
    """Run the program for a request of the engine, which waits for the response without a limit."""
    try:
        from infra.engine.program_run import run_program  # noqa: PLC0415  # slow, and not always needed

        response.set_result(run_program(program, request))
    except BaseException as error:
        traceback.print_exc()
        # The thread of the server passes on exceptions of this class, but not all others.
        response.set_exception(RuntimeError(f"the program cannot run: {error!r}"))


def create_server(runs: Runs) -> grpc.Server:
    """Return a server with the methods that the engine calls; requests to run the program go to the queue."""

    def return_nothing(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return _EMPTY_MESSAGE

    def run(request: bytes, _context: grpc.ServicerContext) -> bytes:
        response: Future[bytes] = Future()
        runs.put((request, response))
        return response.result()

    methods: dict[str, Method] = {"GetPluginInfo": return_nothing, "GetRequiredPackages": return_nothing, "Run": run}
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server = grpc.server(ThreadPoolExecutor(_THREADS))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    return server


def import_ahead(file: Path) -> None:
    """Import the modules that a program imports first; the program itself reports those that fail, when it runs."""
    # Also what does not derive from Exception: the engine would wait forever for a host that ends here.
    with suppress(BaseException):
        importlib.import_module("infra.engine.program_run")
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.Import):
                for name in statement.names:
                    importlib.import_module(name.name)
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                importlib.import_module(statement.module)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), ahead="ahead" in sys.argv[3:])
