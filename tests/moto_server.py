"""AWS for tests: on a loopback port for other processes, and as function calls for this one, which are faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infra.targets.aws.rehearse import moto_calls
from infra.targets.aws.rehearse.direct_calls import call_directly
from infra.targets.aws.rehearse.moto_server import ACCOUNT, ENVIRONMENT, REGION, Call, Moto, listening

__all__ = ["ACCOUNT", "ENVIRONMENT", "REGION", "Call", "Moto", "listening", "serve_tests"]


@contextmanager
def serve_tests() -> Iterator[Moto]:
    """Yield a server that listens, and that this process calls as a function."""
    moto_calls.apply()
    server = Moto()
    with listening(server) as server.url, call_directly(server):
        yield server
