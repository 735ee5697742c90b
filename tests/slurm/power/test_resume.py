"""ResumeProgram and SuspendProgram as slurmctld runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.targets.aws.launcher.fleet import Fleet
from slurm.power import limits
from slurm.power.bring_up import COOLDOWN_S
from slurm.power.programs import resume, suspend
from slurm.power.requests import NodeRequest, group_by_job
from slurm.power.sweep import sweep
from tests.harness import REPO
from tests.moto_server import Moto
from tests.slurm.power.cluster import (
    TYPE,
    ZONES,
    AwsContext,
    Clock,
    FakeSlurm,
    list_running,
    make_context,
    make_fleet,
    read_records,
    with_retry_s,
)

NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
COMING = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP"
OFF = "IDLE+CLOUD+POWERED_DOWN"


def job(number: int, resumed: str, allocated: str = "") -> dict[str, object]:
    return {"job_id": number, "nodes_resume": resumed, "nodes_alloc": allocated or resumed}


def launch_tagged(aws: Moto, tags: dict[str, str]) -> str:
    specification = [{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]
    launched = aws.client("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(launched["Instances"][0]["InstanceId"])


@pytest.mark.nightly
def test_256_nodes_take_three_calls(aws: Moto, context: AwsContext) -> None:
    nodes = [f"gpu-{n}" for n in range(1, 257)]
    outcome = resume(context, nodes, [job(1, "gpu-[1-256]")])
    assert len(outcome.up) == 256
    assert sorted(aws.count().values()) == [1, 1, 1]
    assert list(aws.count())[:2] == ["DescribeInstances", "RunInstances"]
    assert read_records(aws, context.launcher.fleet) == {name: machine.address for name, machine in outcome.up.items()}


def test_a_shortage_marks_nodes_down_with_the_capacity_of_each_zone(
    aws: Moto, context: AwsContext, slurm: FakeSlurm
) -> None:
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    context.launcher.fleet = with_retry_s(context.launcher.fleet)
    resume(context, NODES[:2], [job(7, "gpu-[1-2]")])
    reason = "muster: capacity: p5.48xlarge: us-east-1a on-demand none, us-east-1b on-demand none"
    assert slurm.commands == [["update", "nodename=gpu-[1-2]", "state=DOWN", f"reason={reason}"]]


def test_a_shortage_is_retried_for_retry_s_while_slurm_waits(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    """A job that cannot be requeued must survive a brief shortage."""
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 600)
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    resume(context, NODES[:2], [job(7, "gpu-[1-2]")])
    for _ in range(9):
        clock.t += 60
        sweep(context)
    assert slurm.commands == []
    assert aws.count()["RunInstances"] == 8, "each zone is tried every three minutes"
    clock.t += 60
    sweep(context)
    reason = "muster: capacity: p5.48xlarge: us-east-1a on-demand none recently, us-east-1b on-demand none recently"
    assert slurm.commands == [["update", "nodename=gpu-[1-2]", "state=DOWN", f"reason={reason}"]]
    assert context.memory.load("journal") == {}


def test_capacity_that_returns_while_slurm_waits_is_used(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 600)
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    resume(context, NODES[:2], [job(7, "gpu-[1-2]")])
    aws.capacity.clear()
    clock.t += COOLDOWN_S
    sweep(context)
    assert sorted(read_records(aws, context.launcher.fleet)) == ["gpu-1", "gpu-2"]
    assert (slurm.commands, context.memory.load("journal")) == ([], {})


def test_nothing_is_launched_for_a_job_that_was_cancelled_while_it_waited(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 600)
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    resume(context, NODES[:2], [job(7, "gpu-[1-2]")])
    slurm.states |= dict.fromkeys(NODES[:2], "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP")
    aws.capacity.clear()
    clock.t += COOLDOWN_S
    sweep(context)
    assert list_running(aws) == []
    reason = "muster: no job is waiting for it any more"
    assert slurm.commands == [["update", "nodename=gpu-[1-2]", "state=DOWN", f"reason={reason}"]]
    sweep(context)
    assert slurm.states == dict.fromkeys(NODES[:2], OFF)


def test_retries_end_at_half_of_resume_timeout(aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm) -> None:
    """Machines need the other half to boot, and past ResumeTimeout a shortage would count as a failed boot."""
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 3600)
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    slurm.states["gpu-1"], slurm.resume_timeout_s = COMING, 240
    resume(context, NODES[:1], [job(7, "gpu-1")])
    clock.t += 119
    sweep(context)
    assert slurm.commands == []
    clock.t += 1
    sweep(context)
    assert slurm.reasons["gpu-1"].startswith("muster: capacity: ")


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "VcpuLimitExceeded", "InvalidParameterValue"])
def test_errors_that_retrying_cannot_fix_are_reported_at_once(
    aws: Moto, context: AwsContext, slurm: FakeSlurm, code: str
) -> None:
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 600)
    aws.fail("RunInstances", code, times=2)
    resume(context, NODES[:1], [job(1, "gpu-1")])
    assert code in slurm.reasons["gpu-1"]
    assert context.memory.load("journal") == {}


def test_an_option_without_capacity_is_skipped_for_a_while(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    context.launcher.fleet = with_retry_s(context.launcher.fleet)
    aws.capacity[(TYPE, "us-east-1a")] = 0
    resume(context, NODES[:1], [job(1, "gpu-1")])
    assert aws.count()["RunInstances"] == 2
    resume(context, NODES[1:2], [job(2, "gpu-2")])
    assert aws.count()["RunInstances"] == 3
    aws.capacity[(TYPE, "us-east-1b")] = 0
    resume(context, NODES[2:3], [job(3, "gpu-3")])
    resume(context, NODES[3:4], [job(4, "gpu-4")])
    assert aws.count()["RunInstances"] == 4, "nothing is requested while every option is in its cool-down"
    assert slurm.reasons["gpu-4"].endswith("us-east-1a on-demand none recently, us-east-1b on-demand none recently")
    clock.t += COOLDOWN_S
    aws.capacity.clear()
    assert resume(context, NODES[3:4], [job(4, "gpu-4")]).up["gpu-4"].zone == "us-east-1a"


def test_a_young_machine_is_reused_and_an_old_one_is_replaced(aws: Moto, context: AwsContext, clock: Clock) -> None:
    first = resume(context, NODES[:1], [job(1, "gpu-1")]).up["gpu-1"]
    assert resume(context, NODES[:1], [job(1, "gpu-1")]).up["gpu-1"] == first
    clock.t += 3600
    assert resume(context, NODES[:1], [job(2, "gpu-1")]).up["gpu-1"].id != first.id
    assert len(list_running(aws)) == 1


def test_nothing_is_launched_for_a_group_that_is_being_removed(
    aws: Moto, context: AwsContext, slurm: FakeSlurm
) -> None:
    tags = {"muster.cluster": "demo", "muster.stack": "demo", "muster.role": "controller", "muster.closed": "x gpu"}
    launch_tagged(aws, tags)
    assert resume(context, NODES[:1], [job(1, "gpu-1")]).down == {"gpu-1": "muster: the group is being removed"}
    assert len(list_running(aws)) == 1


def test_jobs_wait_for_their_nodes_until_an_upgrade_ends(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    """A job that cannot be requeued would fail if its node was marked down."""
    context.launcher.fleet = with_retry_s(context.launcher.fleet, 0)
    tags = {"muster.cluster": "demo", "muster.stack": "demo", "muster.role": "controller", "muster.held": "gpu"}
    controller = launch_tagged(aws, tags)
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    resume(context, NODES[:2], [job(7, "gpu-[1-2]")])
    clock.t += 600
    sweep(context)
    assert (slurm.commands, len(list_running(aws))) == ([], 1)
    aws.client("ec2").create_tags(Resources=[controller], Tags=[{"Key": "muster.held", "Value": ""}])
    clock.t += 60
    sweep(context)
    assert (slurm.commands, len(list_running(aws))) == ([], 3)


def test_an_upgrade_that_takes_too_long_is_the_reason_of_a_node_without_a_machine(
    aws: Moto, context: AwsContext, clock: Clock, slurm: FakeSlurm
) -> None:
    tags = {"muster.cluster": "demo", "muster.stack": "demo", "muster.role": "controller", "muster.held": "gpu"}
    launch_tagged(aws, tags)
    slurm.states |= {"gpu-1": COMING}
    resume(context, NODES[:1], [job(7, "gpu-1")])
    clock.t += slurm.resume_timeout_s / 2
    sweep(context)
    reason = "muster: nothing was launched during an upgrade of Slurm"
    assert slurm.commands[0] == ["update", "nodename=gpu-1", "state=DOWN", f"reason={reason}"]


def test_nothing_is_launched_from_another_partition_for_a_group_whose_own_is_closed(
    aws: Moto, context: AwsContext
) -> None:
    context.memory.save(limits.BREAKER, {"gpu": {"failures": limits.BREAKER_LIMIT, "closed": True}})
    assert resume(context, NODES[:1], [job(1, "gpu-1")]).down == {
        "gpu-1": "muster: the group's partition is closed, its nodes failed to start"
    }
    assert list_running(aws) == []


def test_all_nodes_of_a_job_are_in_the_zone_of_the_first(aws: Moto, context: AwsContext) -> None:
    aws.capacity[(TYPE, "us-east-1a")] = 0
    resume(context, NODES[:1], [job(1, "gpu-1")])
    aws.capacity.clear()
    context.memory.save("cooldown", {})
    assert resume(context, NODES[1:2], [job(2, "gpu-2", "gpu-[1-2]")]).up["gpu-2"].zone == "us-east-1b"


@pytest.mark.parametrize(
    ("jobs", "requests"),
    [
        ([], [NodeRequest(("gpu-1",)), NodeRequest(("gpu-2",)), NodeRequest(("gpu-3",)), NodeRequest(("gpu-4",))]),
        ([job(1, "gpu-[1-4]")], [NodeRequest(NODES)]),
        ([job(1, "gpu-1"), job(2, "gpu-[2-4]")], [NodeRequest(("gpu-1",)), NodeRequest(("gpu-2", "gpu-3", "gpu-4"))]),
        (
            [job(1, "gpu-[1-2]"), job(2, "gpu-[2-3]")],
            [NodeRequest(("gpu-1", "gpu-2", "gpu-3")), NodeRequest(("gpu-4",))],
        ),
        (
            # The third job joins the nodes of the others: otherwise gpu-2 would be launched twice.
            [job(1, "gpu-1"), job(2, "gpu-2"), job(3, "gpu-[1-2]"), job(4, "gpu-4")],
            [NodeRequest(("gpu-1", "gpu-2")), NodeRequest(("gpu-4",)), NodeRequest(("gpu-3",))],
        ),
        (
            [job(1, "gpu-[3-4]", "gpu-[3-4],gpu-9")],
            [NodeRequest(("gpu-3", "gpu-4"), "b"), NodeRequest(("gpu-1",)), NodeRequest(("gpu-2",))],
        ),
    ],
)
def test_nodes_are_requested_by_job_and_jobs_that_share_a_node_are_merged(
    jobs: list[dict[str, object]], requests: list[NodeRequest]
) -> None:
    assert group_by_job(NODES, jobs, {"gpu-9": "b"}) == requests


def test_thousands_of_jobs_are_grouped_without_comparing_each_with_all_others() -> None:
    """The comparisons grow with the number of jobs, not with its square."""
    names = [f"gpu-{number}" for number in range(1, 10_001)]
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    requests = group_by_job([Name(name) for name in names], [job(n, name) for n, name in enumerate(names)], {})
    assert [request.nodes for request in requests] == [(name,) for name in names]
    assert compared < 20 * len(names)


def test_suspend_terminates_only_the_machines_of_its_nodes(aws: Moto, context: AwsContext, clock: Clock) -> None:
    resume(context, NODES, [job(1, "gpu-[1-4]")])
    # The test clock stood still during the launch; without this, the machines would be younger than the suspend.
    clock.t += 60
    assert len(suspend(context, ["gpu-2", "gpu-3"])) == 2
    assert len(list_running(aws)) == 2
    assert suspend(context, ["gpu-2"]) == []


def test_suspend_spares_a_machine_launched_after_the_request(aws: Moto, context: AwsContext, clock: Clock) -> None:
    resume(context, NODES[:1], [job(1, "gpu-1")])
    clock.t -= 60
    assert suspend(context, ["gpu-1"]) == []


def test_the_sweep_finishes_a_resume_that_was_killed_after_the_launch(
    aws: Moto, fleet: Fleet, tmp_path: Path, slurm: FakeSlurm, clock: Clock
) -> None:
    """Kill the program after EC2 has launched the machines and before it receives the answer."""
    (tmp_path / "etc/muster").mkdir(parents=True)
    (tmp_path / "etc/muster/fleet.json").write_text(fleet.model_dump_json())
    resume_file = tmp_path / "resume.json"
    resume_file.write_text(json.dumps({"all_nodes_resume": "gpu-[1-2]", "jobs": [job(1, "gpu-[1-2]")]}))
    environment = {
        **os.environ,
        **aws.environment(),
        "MUSTER_ROOT": str(tmp_path),
        "SLURM_RESUME_FILE": str(resume_file),
    }
    program = subprocess.Popen(
        [sys.executable, "-m", "infra.targets.aws.launcher", "resume", "gpu-[1-2]"], cwd=REPO, env=environment
    )
    aws.when_done("RunInstances", program.kill)
    program.wait(timeout=120)
    assert program.returncode == -9
    assert len(list_running(aws)) == 2
    assert read_records(aws, fleet) == {}

    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING}
    context = make_context(fleet, tmp_path / "var/lib/muster", slurm, clock)
    sweep(context)
    assert sorted(read_records(aws, fleet)) == ["gpu-1", "gpu-2"]
    assert len(list_running(aws)) == 2
    assert slurm.commands == []


def test_the_sweep_finishes_a_resume_that_was_killed_before_the_launch(
    aws: Moto, context: AwsContext, slurm: FakeSlurm
) -> None:
    context.memory.save("journal", {"x": [[["gpu-1", "gpu-2"], ""], [["gpu-3"], ""]]})
    slurm.states |= {"gpu-1": COMING, "gpu-2": COMING, "gpu-3": OFF}
    sweep(context)
    assert sorted(read_records(aws, context.launcher.fleet)) == ["gpu-1", "gpu-2"]
    assert context.memory.load("journal") == {}


def test_two_groups_in_one_request(aws: Moto, tmp_path: Path, slurm: FakeSlurm, clock: Clock) -> None:
    context = make_context(make_fleet(aws, groups=("gpu", "cpu")), tmp_path, slurm, clock)
    outcome = resume(context, ("gpu-1", "cpu-1"), [job(1, "gpu-1"), job(2, "cpu-1")])
    assert {name: machine.group for name, machine in outcome.up.items()} == {"gpu-1": "gpu", "cpu-1": "cpu"}
    assert sum("rrset" in action for action in aws.count().elements()) == 1
