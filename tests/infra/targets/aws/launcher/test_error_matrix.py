"""Every error code of the table at every call of the launcher: the power programs get kind, code and fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.error_codes import CODES, FIXES
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.power.launcher import LauncherError, Machine
from tests.moto_server import REGION, Moto
from tests.slurm.power.cluster import Clock, list_running

MACHINE = Machine("i-0123456789abcdef0", "gpu-1", "gpu", "us-east-1a", "10.0.0.9", launched=0.0, running=True)
# What muster calls of each service, and by which method of the launcher. `read_spending` needs a budget.
CALLS: Mapping[str, Callable[[AwsLauncher], object]] = {
    "DescribeInstances": lambda launcher: launcher.list_machines(),
    "DescribeInstanceTopology": lambda launcher: launcher.read_places(["i-0123456789abcdef0"]),
    "GetParameters": lambda launcher: launcher.read_set_up_failures(["gpu-1"]),
    "GetCallerIdentity": lambda launcher: launcher.read_spending(),
    "DescribeBudget": lambda launcher: launcher.read_spending(),
    "TerminateInstances": lambda launcher: launcher.terminate([MACHINE]),
    "POST /2013-04-01/hostedzone/{zone}/rrset/": lambda launcher: launcher.publish_names({"gpu-1": "10.0.0.9"}),
    "RunInstances": lambda launcher: launcher.launch(launcher.group("gpu").options[:1], [("gpu-1",)], "token"),
}
CASES = [(kind, code) for kind, codes in CODES.items() for code in codes] + [("broken", "NeverHeardOf")]


@pytest.fixture
def launcher(aws: Moto, fleet: Fleet, clock: Clock) -> AwsLauncher:
    budgeted = fleet.model_copy(update={"budget_name": "demo"})
    return AwsLauncher(budgeted, AwsApi(REGION, deadline_s=3, sleep=clock.sleep, clock=clock.now))


@pytest.mark.parametrize("action", CALLS)
def test_every_code_at_this_call(aws: Moto, fleet: Fleet, launcher: AwsLauncher, action: str) -> None:
    site = action.format(zone=fleet.hosted_zone_id)
    for kind, code in CASES:
        aws.interfere = lambda _service, called, _params, code=code: code if called == site else ""
        if action == "RunInstances":
            (shortage,) = CALLS[action](launcher).shortages  # type: ignore[attr-defined]  # every result here has shortages
            fault = shortage.fault
        elif action == "TerminateInstances" and kind == "gone":
            # The machine has ended already, which is what was to be reached.
            assert CALLS[action](launcher) == [MACHINE.id]
            continue
        else:
            with pytest.raises(LauncherError) as caught:
                CALLS[action](launcher)
            fault = caught.value.fault
            assert f"{code}: injected; {FIXES[fault.kind]}" in str(caught.value)
        assert (fault.kind, fault.code) == (kind, code)
    aws.interfere = None
    assert list_running(aws) == []


@pytest.mark.parametrize("code", CODES["throttle"])
def test_a_throttled_launch_is_repeated_and_starts_one_machine(aws: Moto, launcher: AwsLauncher, code: str) -> None:
    aws.fail("RunInstances", code)
    assert not launcher.launch(launcher.group("gpu").options, [("gpu-1",)], "token").missing
    assert len(list_running(aws)) == 1


def test_the_matrix_has_all_calls_of_the_launcher(aws: Moto, fleet: Fleet, launcher: AwsLauncher) -> None:
    aws.calls.clear()
    for call in CALLS.values():
        with suppress(LauncherError):  # There is neither a budget nor such a machine.
            call(launcher)
    called = {call.action.replace(fleet.hosted_zone_id, "{zone}") for call in aws.calls}
    assert called == set(CALLS)
