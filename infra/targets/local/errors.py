"""What to do about an error of the Docker engine that reached a command."""

from __future__ import annotations

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException, Timeout

from infra.engine.stop import Stop


def explain(failure: Exception) -> Stop | None:
    """Return the message for an error of Docker's library; None for any other."""
    if isinstance(failure, Timeout):
        return Stop(
            "the Docker engine took too long to answer", "see whether it is busy or hangs (`docker info`), then again"
        )
    if isinstance(failure, APIError):
        return Stop(f"Docker refused: {failure.explanation or failure}", "correct what it names, then again")
    if isinstance(failure, (RequestException, DockerException)):
        return Stop(f"the Docker engine does not answer: {failure}", "start it with `make setup`, then again")
    return None
