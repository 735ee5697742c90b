"""The Docker engine: a connection per thread, and its errors with a fix."""

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
from infra.resources.error import ResourceError

_TIMEOUT_S = 60
_FIRST_WITH_WRITABLE_CGROUPS = 28
_DEFAULT_SOCKET = "unix:///var/run/docker.sock"

_local = threading.local()


@dataclass(frozen=True)
class Engine:
    """The properties of the engine that decide how node containers are created."""

    cgroup_version: int
    major: int

    @property
    def writable_cgroups(self) -> bool:
        return self.cgroup_version > 1 and self.major >= _FIRST_WITH_WRITABLE_CGROUPS


def connect() -> docker.APIClient:
    """Return this thread's connection to the engine."""
    if not hasattr(_local, "api"):
        _local.api = _open()
    api: docker.APIClient = _local.api
    return api


@cache
def engine() -> Engine:
    """Return the properties of the engine."""
    info = connect().info()
    return Engine(cgroup_version=int(info.get("CgroupVersion") or 1), major=int(info["ServerVersion"].split(".")[0]))


@contextmanager
def api_session(where: str) -> Iterator[docker.APIClient]:
    """Yield the connection for work on `where`; raise the engine's errors as ResourceError there."""
    try:
        yield connect()
    except APIError as refused:
        raise ResourceError(
            where, f"Docker refused: {refused.explanation}", "fix what the message names, then run it again"
        ) from refused
    except requests.exceptions.ConnectionError as lost:
        raise _unreachable() from lost


def labels(cluster: str, stack: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a resource: the tags of the spec, and those by which muster identifies it."""
    own = names.labels(cluster, stack, datetime.now(UTC).isoformat(timespec="seconds"))
    return dict(tags) | own | names.home_labels(Home.of(os.environ).root)


def is_foreign(labels_on_it: Mapping[str, str] | None) -> bool:
    """Return whether the labels name another MUSTER_HOME; a resource without that label is not foreign."""
    home = (labels_on_it or {}).get(names.HOME)
    return home is not None and home != names.home_labels(Home.of(os.environ).root)[names.HOME]


def check_owner(kind: str, name: str, labels_on_it: Mapping[str, str] | None, cluster: str, stack: str) -> None:
    """Raise ResourceError if a resource with the name of ours has the labels of another owner."""
    present = labels_on_it or {}
    if present.get(names.CLUSTER) == cluster and present.get(names.STACK) == stack and not is_foreign(present):
        return
    if names.STACK not in present:
        raise ResourceError(
            "name",
            f"the Docker {kind} {name} exists already and was not created by muster",
            f"remove it with `docker {kind} rm {name}`, or give the cluster another name",
        )
    owner, home = present[names.STACK], present.get(names.HOME_PATH, "")
    whose = f"stack {owner}, not to stack {stack}"
    if is_foreign(present) and owner == stack:
        whose = f"stack {owner} of another checkout, whose MUSTER_HOME is {home}"
    there = f"MUSTER_HOME={shlex.quote(home)} " if is_foreign(present) else ""
    raise ResourceError(
        "name",
        f"{cluster} is in use: the Docker {kind} {name} belongs to {whose}",
        f"give the cluster of this stack another name, or remove the other one with `{there}make teardown "
        f"STACK={owner}`",
    )


def check_name_free(cluster: str, stack: str) -> None:
    """Raise ResourceError if the network of another owner has the cluster's name."""
    name = names.network(cluster)
    with api_session("name") as api:
        networks = [network for network in api.networks(names=[name]) if network["Name"] == name]
    for network in networks:
        check_owner("network", name, network["Labels"], cluster, stack)


def _open() -> docker.APIClient:
    try:
        return docker.APIClient(timeout=_TIMEOUT_S, version="auto", **_settings())
    except DockerException as refused:
        raise _unreachable() from refused


def _unreachable() -> ResourceError:
    socket = _settings().get("base_url", _DEFAULT_SOCKET)
    return ResourceError(
        "", f"Docker engine does not answer at {socket}", "start it with `make setup`, or `systemctl start docker`"
    )


def _settings() -> dict[str, Any]:
    return dict(kwargs_from_env())
