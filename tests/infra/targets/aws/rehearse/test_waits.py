"""Who waited for whom: machines for the network, static nodes for the controller, jobs for their machines."""

from __future__ import annotations

from infra.targets.aws.rehearse.timeline import Event
from infra.targets.aws.rehearse.waits import Wait, find_waits

NAT, LUSTRE = "NAT gateway us-east-1a", "FSx filesystem muster-demo-shared"


def machine(name: str, launched_s: float, ready_s: float) -> list[Event]:
    return [Event(launched_s, name, "pending"), Event(launched_s + 1, name, "boots"), Event(ready_s, name, "ready")]


def in_order(*events: Event) -> list[Event]:
    return sorted(events, key=lambda event: event.at_s)


UP = [
    Event(1, "rehearsal", "up"), Event(2, NAT, "pending"), Event(3, LUSTRE, "creating"), Event(8, NAT, "available"),
    Event(60, LUSTRE, "available"), *machine("controller", 61, 120),
]  # fmt: skip


def test_the_controller_waits_for_one_resource_after_the_other() -> None:
    assert find_waits(in_order(*UP)) == [Wait("controller", NAT, 2, 8), Wait("controller", LUSTRE, 8, 60)]


def test_static_nodes_wait_for_the_controller() -> None:
    waits = find_waits(in_order(*UP, *machine("gpu-1", 121, 140), *machine("gpu-2", 122, 139)))
    assert waits[2:] == [Wait("gpu-1", "controller", 61, 120), Wait("gpu-2", "controller", 61, 120)]


def test_a_job_waits_for_the_nodes_that_are_launched_for_it_until_it_runs() -> None:
    job = [Event(130, "job 1", "submitted"), Event(131, "job 1", "configuring"), Event(180, "job 1", "running")]
    nodes = [*machine("gpu-1", 132, 170), *machine("gpu-2", 133, 185), *machine("gpu-3", 190, 200)]
    waits = find_waits(in_order(*UP, *job, *nodes))
    assert waits[2:] == [Wait("job 1", "gpu-1", 132, 170), Wait("job 1", "gpu-2", 170, 180)]


def test_a_new_controller_does_not_wait_again_and_the_job_waits_for_it() -> None:
    lost = [Event(131, "controller", "lost"), *machine("controller", 140, 160)]
    job = [Event(130, "job 1", "submitted"), Event(165, "job 1", "running")]
    waits = find_waits(in_order(*UP, *lost, *job))
    assert waits[2:] == [Wait("job 1", "controller", 140, 160)]


def test_a_job_that_never_ran_and_a_machine_that_was_never_ready_end_no_wait() -> None:
    job = [Event(130, "job 1", "submitted"), *machine("gpu-1", 131, 150)]
    assert len(find_waits(in_order(*UP, *job))) == 2
    failed = [Event(130, "job 1", "submitted"), Event(132, "gpu-1", "pending"), Event(150, "job 1", "cancelled")]
    assert find_waits(in_order(*UP, *failed))[2:] == [Wait("job 1", "gpu-1", 132, 150)]
    assert find_waits([]) == []
