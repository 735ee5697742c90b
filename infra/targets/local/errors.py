"""Messages and fixes for errors of the Docker engine."""

from __future__ import annotations

from docker.errors import APIError, DockerException
from requests.exceptions import RequestException, Timeout

from infra.engine.stop import Stop


def explain(failure: Exception) -> Stop | None:
    """Return the message for an error of Docker's library; None for any other."""
    if isinstance(failure, Timeout):
        return Stop(
            "the Docker engine took too long to answer",
            "check with `docker info` whether it is busy, then run it again",
        )
    if isinstance(failure, APIError):
        return Stop(
            f"Docker refused: {failure.explanation or failure}", "fix what the message names, then run it again"
        )
    if isinstance(failure, (RequestException, DockerException)):
        return Stop(f"the Docker engine does not answer: {failure}", "start it with `make setup`, then run it again")
    return None
