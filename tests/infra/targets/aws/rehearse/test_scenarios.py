"""Scenarios: what they inject; that muster copes with it is shown by rehearsing them."""

from __future__ import annotations

from unittest.mock import MagicMock, patch

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse import scenario_steps
from infra.targets.aws.rehearse.interferences import refuse_launches, reject_some
from infra.targets.aws.rehearse.scenario_steps import STEPS, combine_steps, lose_controller
from infra.targets.aws.rehearse.scenarios import PASSED, SCENARIOS, split_scenarios
from tests.fault_matrix.marked_tests import list_marked_tests
from tests.harness import REPO


def test_nothing_goes_wrong_in_the_first_scenario() -> None:
    assert str(next(iter(SCENARIOS.values()))) == "a job runs on two nodes"


def test_every_scenario_has_steps() -> None:
    assert list(STEPS) == list(SCENARIOS)


def test_scenarios_that_share_a_cluster_run_in_their_order() -> None:
    ran: list[str] = []
    rehearsal = MagicMock()
    names = split_scenarios("no-capacity-nodes,dead-node,resize")
    with patch.dict(STEPS, {name: lambda _, name=name: ran.append(name) for name in names}):
        combine_steps(names)(rehearsal)
    assert ran == ["no-capacity-nodes", "dead-node", "resize"]
    assert [call.args[0] for call in rehearsal.console.say.mock_calls] == [f"{PASSED}{name}" for name in names]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ("throttling,job", "throttling"),
        ("job,end", "end"),
        ("job,no-capacity-nodes", "no-capacity-nodes"),
        ("resize,job,resize", "resize"),
    ],
)
def test_scenarios_that_cannot_share_a_cluster_are_rejected(names: str, wrong: str) -> None:
    with pytest.raises(Stop) as caught:
        split_scenarios(names)
    assert str(caught.value) == (
        f"--scenario: '{names}' is not allowed: {wrong} cannot share this cluster; allowed: each of these once: job, "
        "training, dead-node, spot-notice, failed-prolog, dead-controller, resize; before them one of "
        "no-capacity-controller, no-capacity-nodes"
    )
    assert caught.value.fix == f"--scenario {wrong}, which rehearses it alone"


def test_every_scenario_can_run_alone() -> None:
    assert [split_scenarios(name) for name in SCENARIOS] == [[name] for name in SCENARIOS]


def test_the_documentation_lists_all_scenarios() -> None:
    text = (REPO / "docs" / "aws.md").read_text()
    rows = [f"| `{name}` | {case.injects or 'nothing'} | {case.holds} |" for name, case in SCENARIOS.items()]
    assert "\n".join(["| scenario | what goes wrong | what must hold |", "|---|---|---|", *rows]) + "\n\n" in text


def test_scenarios_of_the_fault_matrix_are_tested() -> None:
    """The page docs/faults.md names scenarios as the parameter of their test, which leaves the first two out."""
    tests = [test for test in list_marked_tests() if test.path.endswith("/test_rehearsed_scenarios.py")]
    cases = {name for test in tests for name in test.case.split(",")}
    assert cases
    assert cases <= set(list(SCENARIOS)[2:])


def test_a_seed_repeats_which_calls_are_throttled() -> None:
    def draw(seed: int) -> list[str]:
        interfere = reject_some(0.3, seed)
        return [interfere("ec2", "DescribeVpcs", {}) for _ in range(200)]

    assert draw(1) == draw(1) != draw(2)
    assert 30 < draw(1).count("RequestLimitExceeded") < 90


def test_launches_are_refused_in_one_market_or_in_all() -> None:
    spot = {"InstanceMarketOptions.MarketType": "spot"}
    assert refuse_launches()("ec2", "RunInstances", {}) == "InsufficientInstanceCapacity"
    assert refuse_launches()("ec2", "DescribeInstances", {}) == ""
    assert refuse_launches(market="spot")("ec2", "RunInstances", {}) == ""
    assert refuse_launches(market="spot")("ec2", "RunInstances", spot) == "InsufficientInstanceCapacity"


def test_dry_runs_of_the_pre_flight_are_not_refused() -> None:
    assert refuse_launches()("ec2", "RunInstances", {"DryRun": "true"}) == ""


def test_the_controller_is_lost_under_a_job_that_works_and_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its step is created, the job's srun would fail; before it is saved, the job would start again."""
    monkeypatch.setattr(scenario_steps, "choose_group", lambda *_: ("gpu", 1))
    rehearsal = MagicMock()
    rehearsal.slurm.submit.side_effect = ["1", "2"]
    rehearsal.slurm.read_state.side_effect = ["RUNNING", "PENDING"]
    rehearsal.slurm.wait_for_end.return_value = "gpu-1"
    lose_controller(rehearsal)
    steps = [name for name, _, _ in rehearsal.mock_calls]
    assert (
        steps.index("slurm.wait_for_step") < steps.index("slurm.wait_until_saved") < steps.index("cloud.instances.lose")
    )
