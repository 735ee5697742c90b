"""The Docker engine: one connection per thread, and what it refuses said so that one can act on it."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from cluster import names
from infra.home import Home
from infra.resources.problem import Problem

_TIMEOUT_S = 60
_FIRST_WITH_WRITABLE_CGROUPS = 28
_DEFAULT_SOCKET = "unix:///var/run/docker.sock"

_local = threading.local()


@dataclass(frozen=True)
class Engine:
    """What decides how a node container is made."""

    cgroup_version: int
    major: int

    @property
    def writable_cgroups(self) -> bool:
        return self.cgroup_version > 1 and self.major >= _FIRST_WITH_WRITABLE_CGROUPS


def connect() -> docker.APIClient:
    """This thread's connection to the engine."""
    if not hasattr(_local, "api"):
        _local.api = _open()
    api: docker.APIClient = _local.api
    return api


@cache
def engine() -> Engine:
    info = connect().info()
    return Engine(cgroup_version=int(info.get("CgroupVersion") or 1), major=int(info["ServerVersion"].split(".")[0]))


@contextmanager
def asking(where: str) -> Iterator[docker.APIClient]:
    """The engine, for work on `where`: what it refuses comes out as a Problem there."""
    try:
        yield connect()
    except APIError as refused:
        raise Problem(
            where, f"Docker refused: {refused.explanation}", "correct what it names, then run it again"
        ) from refused
    except requests.exceptions.ConnectionError as lost:
        raise _unreachable() from lost


def labels(cluster: str, stack: str, tags: Mapping[str, str]) -> dict[str, str]:
    made = names.labels(cluster, stack, datetime.now(UTC).isoformat(timespec="seconds"))
    return dict(tags) | made | names.home_labels(Home.of(os.environ).root)


def foreign(found: Mapping[str, str] | None) -> bool:
    """Whether another MUSTER_HOME made it. What carries no such label is nobody else's."""
    home = (found or {}).get(names.HOME)
    return home is not None and home != names.home_labels(Home.of(os.environ).root)[names.HOME]


def check_owner(kind: str, name: str, found: Mapping[str, str] | None, cluster: str, stack: str) -> None:
    """What carries our name but another owner's label is not touched."""
    found = found or {}
    if found.get(names.CLUSTER) == cluster and found.get(names.STACK) == stack and not foreign(found):
        return
    if names.STACK not in found:
        raise Problem(
            "name",
            f"the Docker {kind} {name} exists already and no stack of muster made it",
            f"remove it with `docker {kind} rm {name}`, or give the cluster another name",
        )
    owner, home = found[names.STACK], found.get(names.HOME_PATH, "")
    whose = f"stack {owner}, not to stack {stack}"
    if foreign(found) and owner == stack:
        whose = f"stack {owner} of another checkout, whose MUSTER_HOME is {home}"
    there = f"MUSTER_HOME={shlex.quote(home)} " if foreign(found) else ""
    raise Problem(
        "name",
        f"{cluster} is in use: the Docker {kind} {name} belongs to {whose}",
        f"give the cluster of this stack another name, or remove the other one with `{there}make teardown "
        f"STACK={owner}`",
    )


def _open() -> docker.APIClient:
    try:
        return docker.APIClient(timeout=_TIMEOUT_S, version="auto", **_settings())
    except DockerException as refused:
        raise _unreachable() from refused


def _unreachable() -> Problem:
    socket = _settings().get("base_url", _DEFAULT_SOCKET)
    return Problem(
        "", f"Docker engine does not answer at {socket}", "start it with `make setup`, or `systemctl start docker`"
    )


def _settings() -> dict[str, Any]:
    return dict(kwargs_from_env())
