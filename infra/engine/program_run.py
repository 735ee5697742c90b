"""Run a Pulumi program as a request of the engine says; program_host.py receives it."""

from __future__ import annotations

import asyncio
import logging
import runpy
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulumi
from pulumi.runtime import reset_options, run_in_stack, set_all_config
from pulumi.runtime.proto.language_pb2 import RunRequest, RunResponse

# Threads of the program for each operation that the engine runs at a time, as in Pulumi's language host.
_THREADS_PER_OPERATION = 4


def run_program(program: Path, encoded: bytes) -> bytes:
    """Run the program in a folder for an encoded request; return the encoded response."""
    request = RunRequest.FromString(encoded)
    configure(request)
    response = RunResponse()
    try:
        run_in_loop(program, request.parallel)
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        response.error = str(error)
    except BaseException:  # an asyncio.CancelledError, for one, is no Exception
        pulumi.log.error(f"Program failed with an unhandled exception:\n{traceback.format_exc()}")
        # The engine adds no error of its own.
        response.bail = True
    return bytes(response.SerializeToString())


def configure(request: RunRequest) -> None:
    """Give the engine's addresses and the configuration to Pulumi's SDK."""
    set_all_config(dict(request.config), list(request.configSecretKeys))
    reset_options(
        project=request.project,
        stack=request.stack,
        root_directory=request.info.root_directory,
        parallel=request.parallel,
        engine_address=request.args[0],
        monitor_address=request.monitor_address,
        preview=request.dryRun,
        organization=request.organization,
    )


def run_in_loop(program: Path, parallel: int) -> None:
    """Run the program, and the tasks that it leaves, in an event loop."""

    def run() -> None:
        runpy.run_path(str(program), run_name="__main__")

    # A program that fails leaves tasks that nobody awaits.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with ThreadPoolExecutor(max(parallel, 1) * _THREADS_PER_OPERATION) as threads:
        loop.set_default_executor(threads)
        try:
            loop.run_until_complete(run_in_stack(run))
        finally:
            loop.close()
            sys.stdout.flush()
            sys.stderr.flush()
