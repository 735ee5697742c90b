"""Instances of a rehearsal: a seed repeats their delays, and an end at any moment leaves no container."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse import instances as rehearsed
from infra.targets.aws.rehearse import moto_hooks
from infra.targets.aws.rehearse.instance import Instance
from tests.infra.targets.aws.rehearse.instances_without_docker import TYPE, Engine, make_instances, wait_for


def make_raw(id_: str, node: str = "gpu-1", image: str = "ami-1") -> Any:
    return SimpleNamespace(
        id=id_,
        private_ip="10.96.0.9",
        instance_type=TYPE,
        image_id=image,
        ami_launch_index=0,
        _state=SimpleNamespace(name="running", code=16),
        _reason="",
        lifecycle="spot",
        nics={},
        state_reason=SimpleNamespace(code="", message=""),
        get_tags=lambda: [{"key": names.NODE, "value": node}],
    )


def record_delays(ids: tuple[str, str], volume: str) -> list[float]:
    """Return the delays of a node that is launched, gets a disk, is terminated and is launched again."""
    slept: list[float] = []
    all_instances = make_instances(slept.append)
    all_instances.launch(make_raw(ids[0]), "role")
    wait_for(lambda: all_instances.by_id[ids[0]].is_registered)
    all_instances.attach(volume, ids[0])
    wait_for(lambda: volume in all_instances.disks.loops)
    all_instances.terminate(ids[0])
    wait_for(lambda: all_instances.by_id[ids[0]].raw._state.name == "terminated")
    all_instances.launch(make_raw(ids[1]), "role")
    wait_for(lambda: all_instances.by_id[ids[1]].is_registered)
    all_instances.close()
    return slept


@pytest.mark.usefixtures("engine")
def test_a_seed_repeats_all_delays_though_ids_differ() -> None:
    first, again = record_delays(("i-a1", "i-a2"), "vol-a"), record_delays(("i-b1", "i-b2"), "vol-b")
    assert first == again
    # Pending, boot, profile, agent; disk; shut-down; and the second launch, whose delays are others.
    assert len(first) == 10
    assert first[:4] != first[6:]


def test_an_instance_that_restarts_boots_again_and_is_registered_again(engine: Engine) -> None:
    all_instances = make_instances(lambda _: None)
    all_instances.launch(make_raw("i-1"), "role")
    instance = all_instances.by_id["i-1"]
    wait_for(lambda: instance.is_registered)
    container = all_instances.container("i-1")
    engine.restarting.add(container)
    wait_for(lambda: "continues" in [event.what for event in all_instances.timeline.events])
    wait_for(lambda: instance.is_registered)
    assert container in engine.running
    assert instance.boot_s > 15  # two boots
    all_instances.close()
    assert all_instances.failures == []


def test_an_instance_starts_from_the_node_image_or_from_the_image_that_was_made_of_a_machine(engine: Engine) -> None:
    all_instances = make_instances(lambda _: None)
    all_instances.node_image = "muster-node:26.05"
    all_instances.images["ami-2"] = "baked:ami-2"
    for id_, image in (("i-1", "ami-1"), ("i-2", "ami-2")):
        all_instances.launch(make_raw(id_, f"gpu-{id_[-1]}", image), "role")
    wait_for(lambda: all(instance.is_registered for instance in all_instances.by_id.values()))
    all_instances.close()
    assert engine.images == {"i-1": "muster-node:26.05", "i-2": "baked:ami-2"}


def test_an_instance_is_ready_when_its_node_says_so(engine: Engine) -> None:
    all_instances = make_instances(lambda _: None)
    all_instances.launch(make_raw("i-1"), "role")
    all_instances.report("gpu-1", "working")
    assert all_instances.by_id["i-1"].ready_at is None
    all_instances.report("gpu-1", "ready")
    all_instances.report("gpu-9", "ready")
    all_instances.close()
    assert all_instances.by_id["i-1"].ready_at is not None
    assert [event.what for event in all_instances.timeline.events if event.subject == "gpu-9"] == []


def test_an_instance_that_is_terminated_while_its_container_starts_leaves_none(engine: Engine) -> None:
    all_instances = make_instances(lambda _: None)

    def terminate() -> None:
        all_instances.terminate("i-1")
        wait_for(lambda: all_instances.by_id["i-1"].raw._state.name == "terminated")

    engine.while_starting = terminate
    all_instances.launch(make_raw("i-1"), "role")
    wait_for(all_instances.by_id["i-1"].is_booted.is_set)
    all_instances.close()
    assert engine.running == set()
    assert not all_instances.by_id["i-1"].is_registered
    assert all_instances.failures == []


def test_after_the_end_nothing_is_started(engine: Engine) -> None:
    closing = threading.Event()
    all_instances = make_instances(closing.wait)
    all_instances.closing = closing
    all_instances.launch(make_raw("i-1"), "role")
    began = time.monotonic()
    all_instances.close()
    all_instances.launch(make_raw("i-2"), "role")
    assert time.monotonic() - began < 15  # Boots take more than 20 s.
    assert engine.running == set()
    assert all_instances.failures == []


@pytest.mark.usefixtures("engine")
def test_a_new_instance_is_listed_only_after_a_while() -> None:
    all_instances = make_instances(lambda _: None)
    raws = [make_raw("i-1"), make_raw("i-2", "gpu-2")]
    for raw, listing_s in zip(raws, (-60, 60), strict=True):
        all_instances.listing_s = listing_s
        all_instances.launch(raw, "role")
    assert (all_instances.is_listed("i-1"), all_instances.is_listed("i-2")) == (True, False)
    both, late = SimpleNamespace(instances=raws), SimpleNamespace(instances=raws[1:])
    assert [reservation.instances for reservation in all_instances.hide_unlisted([both, late])] == [raws[:1]]
    assert all_instances.is_listed("i-of-another-account")
    all_instances.close()


def test_a_lost_instance_is_gone_at_once_and_has_a_reason(engine: Engine) -> None:
    all_instances = make_instances(lambda _: None)
    raw = make_raw("i-1")
    raw.terminate = lambda: all_instances.terminate("i-1")
    all_instances.launch(raw, "role")
    wait_for(lambda: all_instances.by_id["i-1"].is_registered)
    assert all_instances.find("gpu-1") is all_instances.by_id["i-1"]
    all_instances.lose("i-1")
    assert engine.running == set()
    assert all_instances.find("gpu-1") is None
    assert raw.state_reason.code == "Server.InternalError"
    wait_for(lambda: raw._state.name == "terminated")


@pytest.mark.usefixtures("engine")
def test_a_spot_instance_is_announced_two_minutes_before_it_ends() -> None:
    notice_over = threading.Event()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds == rehearsed.SPOT_NOTICE_S:
            notice_over.wait(240)

    all_instances = make_instances(sleep)
    raw = make_raw("i-1")
    raw.terminate = lambda: all_instances.terminate("i-1")
    all_instances.launch(raw, "role")
    wait_for(lambda: all_instances.by_id["i-1"].is_registered)
    all_instances.take_back("i-1")
    wait_for(lambda: rehearsed.SPOT_NOTICE_S in slept)
    assert raw._state.name == "running"
    notice_over.set()
    wait_for(lambda: raw._state.name == "terminated")
    # Its reason is set when moto's own call returns, and that call only begins the end.
    wait_for(lambda: raw.state_reason.code == "Server.SpotInstanceTermination")
    all_instances.close()


@pytest.mark.parametrize("error", [ResourceError("", "no space", "free some"), KeyError("x"), OSError("no space")])
def test_an_error_of_this_machine_ends_the_instance_with_a_reason(engine: Engine, error: Exception) -> None:
    def fail() -> None:
        raise error

    all_instances = make_instances(lambda _: None)
    engine.while_starting = fail
    engine.last_lines = ["Failed to mount cgroup", "Exiting PID 1"]
    raw = make_raw("i-1")
    raw.terminate = lambda: all_instances.terminate("i-1")
    all_instances.launch(raw, "role")
    failed = all_instances.by_id["i-1"]
    wait_for(failed.is_booted.is_set)
    all_instances.close()
    assert failed.raw._state.name == "terminated"
    assert failed.raw.state_reason.code == "Server.InternalError"
    assert len(all_instances.failures) == 1
    assert all_instances.failures[0].startswith("gpu-1: ")
    assert all_instances.failures[0].endswith("The machine printed last: Failed to mount cgroup / Exiting PID 1")


def test_a_command_that_this_machine_cannot_run_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("no engine")

    monkeypatch.setattr(moto_hooks.engine_client, "connect", refuse)
    all_instances = make_instances(lambda _: None)
    all_instances.by_id["i-1"] = Instance(make_raw("i-1"), "role")
    commands = moto_hooks.Commands(all_instances)
    commands.start(SimpleNamespace(command_id="c", parameters={"commands": ["true"]}), ["i-1"])
    wait_for(lambda: commands.results["c", "i-1"]["Status"] != "InProgress")
    assert commands.results["c", "i-1"]["Status"] == "Failed"
    assert "OSError: no engine" in commands.results["c", "i-1"]["StandardErrorContent"]
    assert all_instances.failures == ["Run Command on gpu-1: failed on this machine: OSError: no engine"]
