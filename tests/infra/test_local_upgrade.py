"""Packages of an upgrade on the local target: what the container that copies them prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from cluster.spec import ClusterSpec
from infra.resources.error import ResourceError
from infra.targets.local import plan, upgrade

SUMS = b"0a1b  slurmd_26.05.deb\n"
WARNING = b"cp: warning: the clock is wrong\n"


class Api:
    """A Docker engine whose container writes to both of its outputs."""

    def __init__(self, code: int) -> None:
        self.code = code

    def create_host_config(self, **_: object) -> None: ...

    def create_container(self, *_: object, **__: object) -> dict[str, str]:
        return {"Id": "c1"}

    def start(self, _: str) -> None: ...

    def wait(self, _: str) -> dict[str, int]:
        return {"StatusCode": self.code}

    def logs(self, _: str, *, stdout: bool = True, stderr: bool = True) -> bytes:
        return WARNING * stderr + SUMS * stdout


def publish(monkeypatch: pytest.MonkeyPatch, code: int) -> str:
    @contextmanager
    def session(_: str) -> Iterator[Api]:
        yield Api(code)

    engine = SimpleNamespace(api_session=session, labels=lambda *_: {})
    monkeypatch.setattr(upgrade, "engine_client", engine)
    monkeypatch.setattr(upgrade, "remove_container", lambda *_: None)
    spec = ClusterSpec.model_validate({"name": "toy", "target": "local", "groups": {"gpu": {}}})
    return upgrade.publish_packages(plan.plan(spec), "s", "26.05").sums


def test_a_warning_is_not_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    assert publish(monkeypatch, 0) == SUMS.decode().strip()


def test_a_failed_copy_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"cannot be copied to .*: cp: warning: the clock is wrong"):
        publish(monkeypatch, 1)
