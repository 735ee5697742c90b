"""The sweep: its rules as tables, then the complete program against moto."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.control.jobs import EMPTYING, LEAVING
from slurm.control.nodes import parse_nodes
from slurm.power import limits
from slurm.power.context import Context
from slurm.power.findings import (
    Finding,
    find_orphans,
    find_replacements,
    find_to_start,
    list_been_up,
    select_due,
)
from slurm.power.launcher import Machine, MachineList, Spending
from slurm.power.programs import resume, resume_failed
from slurm.power.reasons import TAKEN_BACK
from slurm.power.sweep import sweep
from tests.moto_server import Moto
from tests.slurm.power.cluster import Clock, FakeSlurm, list_running, make_context, make_fleet
from tests.slurm.power.states import BUSY, COMING, DOWN, DRAINED, NEVER, OFF, UP, machine, node


@pytest.mark.parametrize(
    ("state", "reason", "has_machine", "rule"),
    [
        (UP, "", True, None),
        (BUSY, "", True, None),
        (OFF, "", False, None),
        (COMING, "", True, None),
        (COMING, "", False, "never-came"),
        (UP, "", False, "lost"),
        (BUSY, "", False, "lost"),
        (DRAINED, "health: xid 79", True, "replace"),
        ("ALLOCATED+CLOUD+DRAIN", "health: xid 79", True, None),
        # The user whose process it is would start it again on the new machine.
        (DRAINED, "health: gpu-processes: python (pid 7 of ann) uses a GPU and belongs to no job", True, None),
        (DRAINED, "health: gpu-processes: python (pid 7 of ann) uses a GPU; gpu: exit code 9", True, "replace"),
        (DRAINED, "health: fabric: gpu-1 is slow", True, "replace"),
        (DRAINED, "Prolog error", True, "replace"),
        (DRAINED, "Prolog/Epilog failure", True, "replace"),
        (DRAINED, "Kill task failed", True, "replace"),
        ("ALLOCATED+CLOUD+DRAIN", "Kill task failed", True, None),
        (DRAINED, "mine, Ann", True, None),
        (DRAINED, "mine, Ann", False, None),
        (DRAINED, EMPTYING, True, None),
        (DRAINED, LEAVING, True, None),
        (DRAINED, LEAVING, False, "replace"),
        (f"{DOWN}+DRAIN", LEAVING, True, "replace"),
        (DOWN, "Not responding", True, "replace"),
        (DOWN, "ResumeTimeout reached", False, "replace"),
        (DOWN, "power cable, Bob", True, None),
        (NEVER, "muster: capacity: p5.48xlarge: us-east-1a on-demand none", False, "replace"),
        ("IDLE+CLOUD+POWERING_DOWN", "", True, None),
        ("DOWN+CLOUD+POWERING_DOWN", "Not responding", True, None),
    ],
)
def test_which_nodes_need_another_machine(state: str, reason: str, has_machine: bool, rule: str | None) -> None:
    existing = MachineList((machine(),) if has_machine else ())
    assert [finding.rule for finding in find_replacements(existing, {"gpu-1": node(state, reason)})] == (
        [rule] if rule else []
    )


@pytest.mark.parametrize(
    ("orphan", "state", "why"),
    [
        (machine(), UP, None),
        (machine(), COMING, None),
        (machine(), OFF, "Slurm has gpu-1 powered down"),
        (machine(name=""), UP, "it has no name"),
        (machine(name="gpu-9"), UP, "Slurm has no node gpu-9"),
        (machine(running=False), UP, "it was stopped, and nothing starts it again"),
    ],
)
def test_which_machines_are_orphans(orphan: Machine, state: str, why: str | None) -> None:
    assert [finding.why for finding in find_orphans(MachineList((orphan,)), {"gpu-1": node(state)}, ())] == (
        [why] if why else []
    )


@pytest.mark.fault(17)
def test_a_duplicate_of_the_machine_that_slurm_uses_is_an_orphan() -> None:
    both = MachineList((machine(number=1), machine(number=2)))
    for address, extra in (("10.0.0.2", "i-1"), ("10.0.0.1", "i-2"), ("gpu-1", "i-2")):
        assert [finding.subject for finding in find_orphans(both, {"gpu-1": node(UP, address=address)}, ())] == [extra]


def test_a_stopped_machine_does_not_hide_a_running_one() -> None:
    existing = MachineList((machine(number=1, running=False), machine(number=2)))
    nodes = {"gpu-1": node(UP)}
    assert list(find_replacements(existing, nodes)) == []
    assert [finding.subject for finding in find_orphans(existing, nodes, ())] == ["i-1"]


def test_a_new_machine_of_a_replaced_group_has_time_to_start() -> None:
    (finding,) = find_replacements(MachineList((machine(),)), {"gpu-1": node(f"{DOWN}+DRAIN", LEAVING)})
    assert (finding.rule, finding.grace_s) == ("replace", 1800.0)


@pytest.mark.parametrize(
    ("reason", "grace_s"),
    [
        ("Not responding", 300),
        ("health: xid 79", 300),
        ("health: mounts: /shared is not mounted", 300),
        ("health: gpu: exit code 9", 1200),
        ("health: gpu: exit code 9; mounts: /shared is not mounted", 300),
        ("health: after reset and reboot: gpu: exit code 9", 300),
        ("Prolog error", 300),
        ("muster: capacity: p5.48xlarge: us-east-1a on-demand none", 180),
        ("muster: budget: 130 of 100 USD spent this month, nothing is launched", 900),
        ("muster: its machine is gone", 0),
        ("ResumeTimeout reached", 0),
    ],
)
def test_transient_faults_have_a_grace_period(reason: str, grace_s: float) -> None:
    assert [
        finding.grace_s for finding in find_replacements(MachineList((machine(),)), {"gpu-1": node(DOWN, reason)})
    ] == [grace_s]


def test_static_nodes_are_started_unless_excluded() -> None:
    nodes = {name: node(OFF) for name in ("gpu-1", "gpu-2", "gpu-3")}
    existing = MachineList((machine("gpu-1"),))
    assert [finding.subject for finding in find_to_start(existing, nodes, ["gpu-1", "gpu-2", "gpu-3"], ["gpu-3"])] == [
        "gpu-2"
    ]


@pytest.mark.parametrize(
    ("state", "has_machine", "before", "closed", "been_up"),
    [
        (OFF, False, False, False, False),
        (OFF, True, False, False, False),
        (COMING, True, False, False, False),
        (UP, False, False, False, False),
        (UP, True, False, False, True),
        (DRAINED, True, False, False, True),
        (DOWN, True, False, False, True),
        (OFF, False, True, False, True),
        (UP, True, True, True, False),
    ],
)
def test_which_static_nodes_have_been_up(
    state: str, has_machine: bool, before: bool, closed: bool, been_up: bool
) -> None:
    existing = MachineList((machine(),) if has_machine else (), closed=frozenset({"gpu"} if closed else ()))
    names = ["gpu-1"] if before else []
    assert list_been_up(existing, {"gpu-1": node(state)}, ["gpu-1"], names) == ({"gpu-1"} if been_up else set())


def test_a_finding_is_due_after_its_grace_period() -> None:
    lost, orphan = Finding("lost", "gpu-1", "", 60), Finding("orphan", "i-1", "", 300)
    due, since = select_due([lost, orphan], {}, 1000)
    assert (due, since) == ([], {"lost gpu-1": 1000, "orphan i-1": 1000})
    due, since = select_due([lost], since, 1060)
    assert (due, since) == ([lost], {"lost gpu-1": 1000}), "a finding that no longer holds is dropped"


def test_orphans_are_terminated_after_their_grace_period(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    up = resume(context, ["gpu-1", "gpu-2", "gpu-9"], []).up
    slurm.states |= {"gpu-1": UP, "gpu-2": OFF}
    sweep(context)
    assert len(list_running(aws)) == 3
    clock.t += 300
    sweep(context)
    clock.t += 1500
    sweep(context)
    assert [instance["InstanceId"] for instance in list_running(aws)] == [up["gpu-1"].id]


@pytest.mark.fault(17, place="simulated AWS")
def test_of_two_machines_with_a_name_the_extra_one_is_logged_with_both_addresses_and_terminated(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    used = resume(context, ["gpu-1"], []).up["gpu-1"]
    option = context.launcher.group("gpu").options[0]
    extra = context.launcher.launch([option], [("gpu-1",)], "another request").machines["gpu-1"]
    slurm.states["gpu-1"], slurm.addresses["gpu-1"] = UP, used.address
    assert used.address != extra.address
    with caplog.at_level("INFO"):
        sweep(context)
        assert len(list_running(aws)) == 2, "the new machine may be about to become the node"
        clock.t += 60
        sweep(context)
    why = f"at {extra.address}, has the name of gpu-1, which is {used.id} at {used.address}"
    assert f"orphan: {extra.id}: {why}" in caplog.messages
    assert [instance["InstanceId"] for instance in list_running(aws)] == [used.id]


def test_static_nodes_are_left_to_up_until_they_have_been_up(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    """`up` launches them together, in one zone; the sweep would launch each alone."""

    def start_rules() -> list[str]:
        clock.t += 60
        return [finding.subject for finding in sweep(context) if finding.rule == "start"]

    slurm.states, slurm.static = {"gpu-1": OFF, "gpu-2": OFF}, "gpu-[1-2]"
    assert [start_rules() for _ in range(3)] == [[], [], []]
    launched = resume(context, ["gpu-1"], []).up["gpu-1"]
    slurm.states["gpu-1"] = UP
    assert start_rules() == []
    context.launcher.terminate([launched])
    slurm.states["gpu-1"] = OFF
    assert [start_rules() for _ in range(2)] == [[], ["gpu-1"]], "gpu-2 has not been up"


def test_a_node_without_its_machine_is_marked_down_and_powered_down_in_one_sweep(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    slurm.states["gpu-1"] = BUSY
    sweep(context)
    assert slurm.commands == []
    clock.t += 60
    sweep(context)
    assert slurm.commands == [
        ["update", "nodename=gpu-1", "state=DOWN", "reason=muster: its machine is gone"],
        ["update", "nodename=gpu-1", "state=POWER_DOWN"],
    ]
    assert slurm.states["gpu-1"] == OFF
    assert list_running(aws) == []


def test_a_node_that_is_taken_back_while_it_starts_is_marked_down_first(context: Context, slurm: FakeSlurm) -> None:
    """Slurm would keep it in POWERING_UP until ResumeTimeout; tests/e2e/test_power.py shows this with slurmctld."""
    slurm.states["gpu-1"] = "IDLE+CLOUD+DRAIN+NOT_RESPONDING+POWERING_UP"
    slurm.reasons["gpu-1"] = f"{TAKEN_BACK}at noon"
    sweep(context)
    assert slurm.commands == [
        ["update", "nodename=gpu-1", "state=DOWN", f"reason={TAKEN_BACK}at noon"],
        ["update", "nodename=gpu-1", "state=POWER_DOWN"],
    ]


def test_nothing_happens_while_slurm_and_the_cloud_agree(
    aws: Moto, context: Context, slurm: FakeSlurm, clock: Clock
) -> None:
    resume(context, ["gpu-1"], [])
    slurm.states |= {"gpu-1": UP, "gpu-2": OFF}
    aws.calls.clear()
    for _ in range(3):
        assert sweep(context) == []
        clock.t += 3600
    assert slurm.commands == []
    assert aws.count() == {"DescribeInstances": 3}


def test_the_breaker_closes_a_partition_after_consecutive_failures(context: Context, slurm: FakeSlurm) -> None:
    slurm.states |= {f"gpu-{n}": OFF for n in range(1, 13)}
    slurm.static = "gpu-[1-2]"
    resume_failed(context, [f"gpu-{n}" for n in range(1, 10)])
    sweep(context)
    assert slurm.partitions == {"gpu": "UP"}
    resume_failed(context, ["gpu-10"])
    sweep(context)
    assert slurm.partitions == {"gpu": "DOWN"}
    slurm.partitions["gpu"] = "UP"
    sweep(context)
    assert slurm.partitions == {"gpu": "UP"}, "a partition that a person opened stays open"
    assert context.memory.load(limits.BREAKER) == {}


def test_a_node_that_comes_up_resets_the_breaker(aws: Moto, context: Context, slurm: FakeSlurm) -> None:
    slurm.states |= {"gpu-1": UP}
    resume_failed(context, [f"gpu-{n}" for n in range(2, 11)])
    resume(context, ["gpu-1"], [])
    sweep(context)
    assert context.memory.load(limits.BREAKER) == {}
    resume_failed(context, ["gpu-2"])
    sweep(context)
    assert context.memory.load(limits.BREAKER)["gpu"]["failures"] == 1, "the same machine counts once"


def test_nodes_that_vanish_while_they_start_count_as_failures(context: Context, slurm: FakeSlurm, clock: Clock) -> None:
    slurm.states |= {f"gpu-{n}": COMING for n in range(1, limits.BREAKER_LIMIT + 1)}
    sweep(context)
    clock.t += 180
    sweep(context)
    assert slurm.partitions == {"gpu": "DOWN"}
    assert set(slurm.reasons.values()) == {"muster: its machine disappeared while starting"}


def test_idle_gpu_nodes_over_budget_are_stopped_and_not_restarted(
    aws: Moto, tmp_path: Path, slurm: FakeSlurm, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"BudgetName": "b", "BudgetLimit": {"Amount": "100", "Unit": "USD"}, "TimeUnit": "MONTHLY"}
    aws.client("budgets").create_budget(AccountId="123456789012", Budget={**budget, "BudgetType": "COST"})
    context = make_context(make_fleet(aws, budget_name="b"), tmp_path, slurm, clock)
    resume(context, ["gpu-1", "gpu-2", "gpu-3"], [])
    slurm.states |= {"gpu-1": UP, "gpu-2": BUSY, "gpu-3": OFF}
    slurm.static = "gpu-[1,3]"
    sweep(context)
    assert slurm.commands == []
    # moto does not implement costs.
    monkeypatch.setattr(AwsLauncher, "read_spending", lambda _: Spending(130.0, 100.0))
    clock.t += 900
    sweep(context)
    reason = "muster: budget: 130 of 100 USD spent this month"
    assert slurm.commands == [["update", "nodename=gpu-1", "state=POWER_DOWN", f"reason={reason}"]]
    slurm.commands.clear()
    for _ in range(3):
        clock.t += 300
        sweep(context)
    assert [command for command in slurm.commands if "state=POWER_UP" in command] == []


def test_a_budget_that_cannot_be_read_does_not_stop_the_sweep(
    aws: Moto, tmp_path: Path, slurm: FakeSlurm, clock: Clock
) -> None:
    context = make_context(make_fleet(aws, budget_name="no-such"), tmp_path, slurm, clock)
    slurm.states["gpu-1"] = UP
    sweep(context)
    clock.t += 60
    assert [finding.rule for finding in sweep(context)] == ["lost"]
    assert aws.count()["DescribeBudget"] == 1, "retrying in each sweep would hold the lock for minutes"
    clock.t += 900
    sweep(context)
    assert aws.count()["DescribeBudget"] == 2


def test_the_reason_of_a_launch_denied_by_the_budget_names_the_budget(
    aws: Moto, tmp_path: Path, slurm: FakeSlurm, clock: Clock
) -> None:
    context = make_context(make_fleet(aws, budget_name="b"), tmp_path, slurm, clock)
    context.memory.save("ceiling", {"at": clock.t, "spent": 130.0, "limit": 100.0})
    aws.fail("RunInstances", "UnauthorizedOperation", times=2)
    resume(context, ["gpu-1"], [])
    assert slurm.reasons == {"gpu-1": "muster: budget: 130 of 100 USD spent this month, nothing is launched"}
    context.memory.save("ceiling", {"at": clock.t, "spent": 30.0, "limit": 100.0})
    aws.fail("RunInstances", "UnauthorizedOperation", times=2)
    resume(context, ["gpu-2"], [])
    assert "us-east-1a on-demand UnauthorizedOperation" in slurm.reasons["gpu-2"]


def test_output_of_scontrol_is_parsed(fleet: Fleet) -> None:
    text = (
        "NodeName=gpu-1 CoresPerSocket=1 CPUTot=192 Gres=gpu:h100:8 NodeAddr=10.0.0.4 State=IDLE+CLOUD+POWERED_DOWN\n"
        "NodeName=cpu-1 CPUTot=2 Gres=(null) NodeAddr=cpu-1 State=DOWN+CLOUD+NOT_RESPONDING+POWERING_UP"
        " Reason=muster: capacity: g6.8xlarge: us-east-1a spot none [slurm@2026-11-15T10:24:30]"
    )
    nodes = parse_nodes(text)
    assert (nodes["gpu-1"].gpus, nodes["gpu-1"].address, nodes["gpu-1"].powered_down) == (True, "10.0.0.4", True)
    assert (nodes["cpu-1"].gpus, nodes["cpu-1"].powering_up, nodes["cpu-1"].out_of_service) == (False, True, True)
