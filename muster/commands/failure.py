"""An exception that a person can act on becomes the one message that says how; any other is a fault of ours."""

from __future__ import annotations

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException, Timeout

from infra.engine.stop import Stop
from infra.resources.problem import Problem


def explained(failure: Exception) -> Stop | None:
    """None where the traceback is what helps."""
    if isinstance(failure, Stop):
        return failure
    if isinstance(failure, Problem):
        what, _, fix = str(failure).partition(" Fix: ")
        return Stop(what.rstrip("."), fix.rstrip("."))
    if isinstance(failure, Timeout):
        return Stop(
            "the Docker engine took too long to answer", "see whether it is busy or hangs (`docker info`), then again"
        )
    if isinstance(failure, APIError):
        return Stop(f"Docker refused: {failure.explanation or failure}", "correct what it names, then again")
    if isinstance(failure, (RequestException, DockerException)):
        return Stop(f"the Docker engine does not answer: {failure}", "start it with `make setup`, then again")
    return None
