"""A provider of Pulumi in this process, whose steps are repeated until their calls have met every error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import grpc
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as pb_grpc
from pulumi.runtime.proto import status_pb2

from infra.targets.aws.rehearse.errors.step_errors import StepErrors

_DETAILS = "grpc-status-details-bin"
# The engine runs as many steps at a time.
_THREADS = 16


class RepeatingProvider:
    """Passes on every request; the steps that change or read a resource are repeated while they meet errors."""

    def __init__(self, provider: Any, errors: StepErrors) -> None:
        self._provider, self._errors = provider, errors

    def __getattr__(self, method: str) -> Any:
        return getattr(self._provider, method)

    def Create(self, request: Any, context: Any) -> Any:
        """Create a resource; one that exists in part is completed, as in the next `up`."""
        if request.preview:
            return self._provider.Create(request, context)
        partial: list[Any] = []

        def create(attempt: _Context) -> Any:
            if not partial:
                return self._provider.Create(request, attempt)
            failure, inputs = partial[-1], request.properties
            update = pb.UpdateRequest(
                id=failure.id, urn=request.urn, olds=failure.properties, news=inputs, old_inputs=inputs
            )
            updated = self._provider.Update(update, attempt)
            return pb.CreateResponse(id=failure.id, properties=updated.properties)

        return self._repeat(create, context, partial.append)

    def Update(self, request: Any, context: Any) -> Any:
        """Change a resource."""
        if request.preview:
            return self._provider.Update(request, context)
        return self._repeat(lambda attempt: self._provider.Update(request, attempt), context)

    def Read(self, request: Any, context: Any) -> Any:
        """Read a resource."""
        return self._repeat(lambda attempt: self._provider.Read(request, attempt), context)

    def Delete(self, request: Any, context: Any) -> Any:
        """Delete a resource."""
        return self._repeat(lambda attempt: self._provider.Delete(request, attempt), context)

    def _repeat(
        self, step: Callable[[_Context], Any], context: Any, keep_partial: Callable[[Any], None] | None = None
    ) -> Any:
        """Run a step until it succeeds, or fails without an error that was injected."""
        while True:
            with self._errors.attempt() as attempt:
                try:
                    response = step(_Context())
                except _StepError as error:
                    failure = error
                except Exception as error:  # the engine gets whatever a resource of ours raises
                    failure = _StepError(f"Exception calling application: {error}")
                else:
                    self._errors.judge(attempt, "")
                    return response
            self._errors.judge(attempt, failure.reason)
            if not attempt.injected:
                context.abort(grpc.StatusCode.UNKNOWN, failure.reason)
            if failure.partial and keep_partial:
                keep_partial(failure.partial)


class _StepError(Exception):
    def __init__(self, reason: str, partial: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.partial = reason, partial
        """What exists of the resource."""


class _Context:
    """The context of an attempt: a step that aborts may be repeated."""

    def abort(self, _code: grpc.StatusCode, reason: str) -> NoReturn:
        raise _StepError(reason)

    def abort_with_status(self, status: Any) -> NoReturn:
        failure = pb.ErrorResourceInitFailed()
        status_pb2.Status.FromString(dict(status.trailing_metadata)[_DETAILS]).details[0].Unpack(failure)
        raise _StepError(status.details, failure)


@contextmanager
def serve_provider(provider: RepeatingProvider) -> Iterator[int]:
    """Serve a provider on loopback and yield its port."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=options)
    # It has all methods of the provider that it passes requests on to.
    pb_grpc.add_ResourceProviderServicer_to_server(cast(pb_grpc.ResourceProviderServicer, provider), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)
