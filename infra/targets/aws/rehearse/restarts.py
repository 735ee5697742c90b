"""Restarts and ends of a machine by its own operating system: systemd ends, and so does the container."""

from __future__ import annotations

import time
from collections.abc import Callable

from docker.errors import NotFound

from infra.targets.local import docker_engine as engine_client

# systemd exits with 0 if it may not restart the machine; a container that is killed has another exit code.
_RESTARTED = 0
OFF_MARK = "/var/lib/rehearsal-off"
"""File that a machine writes when it is shut down for good."""
_POLL_S = 1.0


def wait_for_restart(container: str, is_over: Callable[[], bool]) -> bool:
    """Wait until a container has ended by itself, and return True; return False if it was killed or `is_over`."""
    while not is_over():
        with engine_client.api_session(container) as api:
            try:
                state = api.inspect_container(container)["State"]
            except NotFound:
                return False
        if not state["Running"]:
            return state["ExitCode"] == _RESTARTED and not is_over()
        time.sleep(_POLL_S)
    return False


def is_powered_off(name: str) -> bool:
    """Return whether a container that has ended was shut down for good, and not to restart."""
    with engine_client.api_session(name) as api:
        try:
            api.get_archive(name, OFF_MARK)
        except NotFound:
            return False
    return True


def start_container(name: str) -> None:
    """Start a container that has ended."""
    with engine_client.api_session(name) as api:
        api.start(name)
