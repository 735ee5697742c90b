"""`apply` and `find_drift` on nodes with prepared facts: which scripts each node gets, and what is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bootstrap import apply as apply_module
from bootstrap import drift as drift_module
from bootstrap.apply import ApplyResult, StepResult, apply
from bootstrap.desired import Desired, Secrets
from bootstrap.drift import find_drift
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.progress import Event
from bootstrap.transport.base import Completed, Transport, TransportError
from cluster.inventory import Node
from tests.bootstrap.clusters import desired, done_all


class Recording:
    """A transport on which every script succeeds and is recorded."""

    def __init__(self, log: list[tuple[str, str]], node: str) -> None:
        self._log, self._node = log, node

    def run(self, script: str, **_: object) -> Completed:
        self._log.append((self._node, script))
        idle = "".join(f"NodeName={n} State=IDLE\n" for n in ("gpu-1", "gpu-2"))
        return Completed(0, idle if script.startswith("scontrol show") else "", "")

    def put(self, path: str, *_: object) -> None:
        self._log.append((self._node, f"put {path}"))

    def get(self, path: str) -> bytes:
        return path.encode()

    def close(self) -> None: ...


@pytest.fixture
def set_facts(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Facts]], None]:
    def set_all(facts: dict[str, Facts]) -> None:
        for module in (apply_module, drift_module):
            monkeypatch.setattr(module, "collect_facts", lambda _t, name, _p: facts[name])

    return set_all


def run(target: Desired) -> tuple[ApplyResult, list[tuple[str, str]], list[Event]]:
    log: list[tuple[str, str]] = []
    events: list[Event] = []
    result = apply(target, lambda n: Recording(log, n.name), events.append)
    return result, log, events


def test_a_second_run_sends_nothing_and_reports_no_change(set_facts: Callable[[dict[str, Facts]], None]) -> None:
    target = desired()
    set_facts(done_all(target))
    result, log, events = run(target)
    assert log == []
    assert str(result) == "0 changes on 4 nodes"
    assert {e.state for e in events} == {"start", "ok", "skipped"}
    assert find_drift(target, lambda n: Recording(log, n.name)) == ()


def test_a_stopped_daemon_is_started_in_one_round_trip(set_facts: Callable[[dict[str, Facts]], None]) -> None:
    target = desired()
    facts = done_all(target)
    set_facts(facts | {"gpu-1": Facts(**{**vars(facts["gpu-1"]), "active": facts["gpu-1"].active - {"slurmd"}})})
    _, log, _ = run(target)
    assert [node for node, _ in log] == ["gpu-1", "controller"]
    assert "systemctl restart slurmd" in log[0][1]
    deviations = find_drift(target, lambda n: Recording([], n.name))
    assert [str(deviation) for deviation in deviations] == ["gpu-1: compute: start slurmd"]


def test_drift_reports_an_unreachable_node_and_apply_fails(set_facts: Callable[[dict[str, Facts]], None]) -> None:
    target = desired()
    set_facts(done_all(target))

    def connect(node: Node) -> Transport:
        if node.role == "controller":
            raise TransportError(node.name, "connection refused")
        return Recording([], node.name)

    assert [str(deviation) for deviation in find_drift(target, connect)] == ["controller: connect: connection refused"]
    with pytest.raises(BootstrapError, match="node controller, step connect: connection refused"):
        apply(target, connect, lambda _: None)


@pytest.mark.attack(10)
def test_an_error_that_mentions_cgroups_does_not_lift_the_limits(
    set_facts: Callable[[dict[str, Facts]], None],
) -> None:
    target = desired()
    facts = done_all(target)
    set_facts(facts | {"gpu-1": Facts(**{**vars(facts["gpu-1"]), "active": facts["gpu-1"].active - {"slurmd"}})})
    log: list[tuple[str, str]] = []

    class Refusing(Recording):
        def run(self, script: str, **more: object) -> Completed:
            refuse = "restart slurmd" in script
            return Completed(1, "", "fatal: Hybrid mode is not supported") if refuse else super().run(script, **more)

    with pytest.raises(BootstrapError, match=r"Hybrid mode is not supported.*Fix: .*`slurm.cgroups: none`"):
        apply(target, lambda n: Refusing(log, n.name), lambda _: None)
    assert log == [], "no node gets another configuration"


def test_secrets_are_not_in_messages() -> None:
    secrets = Secrets(b"hidden-key", "hidden-password", "ssh-ed25519 AAAA")
    assert "hidden" not in repr(secrets)
    with pytest.raises(ValueError, match="db_password: only letters") as caught:
        Secrets(b"", "bad'one", "")
    assert "bad'one" not in str(caught.value)


def test_the_result_counts_changed_steps() -> None:
    results = (StepResult("a", "hosts", "changed"), StepResult("a", "users", "ok"), StepResult("b", "hosts", "changed"))
    assert str(ApplyResult(results)) == "2 changes on 2 nodes"
    assert str(ApplyResult(results[:1])) == "1 change on 1 node"
