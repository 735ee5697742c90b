"""Serve Pulumi's provider of dynamic resources: `python -P provider_host.py PROGRAM DESCRIPTOR`.

Pulumi would start a provider twice in every `up`, for the refresh and for the update, when the first resource needs it.
This one serves both (PULUMI_DEBUG_PROVIDERS), and imports its modules while Pulumi starts.
"""

# Imports stand below the line that makes them faster.
# ruff: noqa: E402
from __future__ import annotations

import gc

gc.disable()

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from infra.engine.host_process import enter_program, start_server

_SERVICE = "/pulumirpc.ResourceProvider/"
# The engine reads or changes four resources at a time for each processor of this machine.
_THREADS = 16
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def main(program: Path, descriptor: int) -> None:
    """Write the host's address to the descriptor, then serve the provider until the engine ends."""
    handlers: Future[grpc.GenericRpcHandler] = Future()
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_UNLIMITED)
    server.add_generic_rpc_handlers((DeferredHandlers(handlers),))
    enter_program(program)
    start_server(server, descriptor)
    try:
        handlers.set_result(load_handlers())
    except BaseException as error:
        # The threads of the server pass on exceptions of this class, but not all others.
        handlers.set_exception(RuntimeError(f"the provider cannot be imported: {error!r}"))
    # The imported modules stay; what the provider creates does not.
    gc.freeze()
    gc.enable()
    server.wait_for_termination()


class DeferredHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Accept calls at once, and answer them when the provider has been imported: the engine waits 10 s to connect."""

    def __init__(self, handlers: Future[grpc.GenericRpcHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return a handler of encoded messages that passes them to the provider's method."""
        if not handler_call_details.method.startswith(_SERVICE):
            return None

        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            handler: Any = self._handlers.result().service(handler_call_details)
            if handler is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no method {handler_call_details.method}")
            encode: Callable[[Any], bytes] = handler.response_serializer
            return encode(handler.unary_unary(handler.request_deserializer(request), context))

        return grpc.unary_unary_rpc_method_handler(call)


def load_handlers() -> grpc.GenericRpcHandler:
    """Import the provider and return the handlers of its methods."""
    from pulumi.runtime.proto.provider_pb2_grpc import add_ResourceProviderServicer_to_server  # noqa: PLC0415  # slow

    from infra.engine.dynamic_provider import load_dynamic_provider  # noqa: PLC0415  # slow

    collector = _Collector()
    add_ResourceProviderServicer_to_server(load_dynamic_provider(), collector)
    return collector.handlers[0]


class _Collector:
    """Takes the place of the server to which handlers are added."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self.handlers.extend(handlers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
