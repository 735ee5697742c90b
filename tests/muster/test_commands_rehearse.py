"""`muster rehearse`: input that cannot be rehearsed is rejected before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.aws.target import AwsTarget
from infra.targets.error_coverage import CommandCoverage, ErrorCoverage, ErrorOptions
from infra.targets.mixins import RehearsalOptions
from muster.commands.rehearse import Choice, list_runs, rehearse
from tests.run import REPO


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_a_speed_that_is_not_positive_is_rejected(speed: float) -> None:
    with pytest.raises(Stop) as caught:
        rehearse("aws-g6-pair", Choice(speed=speed))
    assert "--speed: " in str(caught.value)
    assert "allowed: any number above 0" in str(caught.value)


@pytest.mark.parametrize("nodes", [0, -2])
def test_fewer_than_one_node_is_rejected(nodes: int) -> None:
    with pytest.raises(Stop, match=rf"--nodes: {nodes} is not allowed; allowed: 1 or more"):
        rehearse("aws-g6-pair", Choice(nodes=nodes))


def test_a_target_without_a_rehearsal_is_rejected_with_those_that_have_one() -> None:
    with pytest.raises(Stop) as caught:
        rehearse("local", Choice())
    assert "stack local has target local, which cannot be rehearsed; allowed: aws" in str(caught.value)
    assert "such as: aws-existing-vpc, aws-full, aws-g6-pair, " in caught.value.fix


def test_an_unknown_stack_is_rejected() -> None:
    with pytest.raises(Stop, match=r"Pulumi\.nothing\.yaml does not exist"):
        rehearse("nothing", Choice())


def test_the_account_is_not_asked_about_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        pytest.fail("a rehearsal looked something up in the account")

    monkeypatch.setattr(AwsTarget, "look_up", ask)
    monkeypatch.setattr(AwsTarget, "rehearse", lambda _self, stack, *_: stack.home.root)
    rehearse("aws-g6-pair", Choice())


SCENARIOS = {"job": "a job runs", "dead-node": "a machine dies: the job runs again"}


def test_without_a_scenario_nothing_goes_wrong() -> None:
    assert list_runs(Choice(seed=3, speed=20), SCENARIOS) == [RehearsalOptions(3, 20, 2, "job")]


def test_all_scenarios_run_with_each_seed() -> None:
    runs = list_runs(Choice(seed=3, seeds=2, scenario="all"), SCENARIOS)
    assert [(run.scenario, run.seed) for run in runs] == [("job", 3), ("job", 4), ("dead-node", 3), ("dead-node", 4)]


@pytest.mark.parametrize(("given", "refused"), [("flood", "flood"), ("job,flood", "flood"), ("all,job", "all,job")])
def test_an_unknown_scenario_is_rejected_with_all_that_exist(given: str, refused: str) -> None:
    with pytest.raises(Stop) as caught:
        list_runs(Choice(scenario=given), SCENARIOS)
    assert f"--scenario: '{refused}' is not allowed; allowed: all, or one or more of" in str(caught.value)
    assert "\n  job        a job runs\n  dead-node  a machine dies: the job runs again" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--scenario", "flood"), "--scenario: 'flood' is not allowed"),
        (("--errors", "Flood"), "--errors: 'Flood' is not allowed"),
        (("--errors", "sample", "--commands", "down"), "--commands: 'down' is not allowed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_unknown_names_are_rejected_without_importing_the_simulated_cloud(
    option: tuple[str, ...], message: str
) -> None:
    """It takes seconds to import."""
    arguments = ["muster", "rehearse", "--stack", "aws-g6-pair", *option]
    code = (
        f"import sys; sys.argv = {arguments!r}\n"
        "from muster.cli import main\n"
        "try:\n    main()\nfinally:\n    print([m for m in ('moto', 'docker', 'botocore') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, text=True, capture_output=True)
    assert done.returncode == BAD_INPUT
    assert message in done.stderr
    assert done.stdout.splitlines() == ["[]"]


def test_the_scenario_is_printed_before_the_simulated_cloud_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs: list[str] = []

    def start(_target: object, stack: StackHome, *_: object) -> Path:
        outputs.append(capsys.readouterr().out)
        return stack.home.root

    monkeypatch.setattr(AwsTarget, "rehearse", start)
    rehearse("aws-g6-pair", Choice(seed=3, speed=20))
    assert " ".join(outputs[0].split()).startswith("rehearsing scenario job of stack aws-g6-pair, seed 3, at 20 times")


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_number_of_seeds_below_one_is_rejected(seeds: int) -> None:
    with pytest.raises(Stop, match=r"--seeds: -?\d is not allowed; allowed: 1 or more"):
        rehearse("aws-g6-pair", Choice(seeds=seeds))


def test_failed_rehearsals_do_not_stop_the_others_and_are_printed_with_their_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_at_seed_2(_self: object, stack: StackHome, run: RehearsalOptions, _console: object) -> Path:
        if run.seed == 2:
            raise Stop("gpu-1 never came")
        return stack.home.root

    monkeypatch.setattr(AwsTarget, "rehearse", fail_at_seed_2)
    with pytest.raises(Stop) as caught:
        rehearse("aws-g6-pair", Choice(seeds=3, speed=20, scenario="resize"))
    assert "1 of 3 rehearsals failed" in str(caught.value)
    assert "muster rehearse --stack aws-g6-pair --scenario resize --seed 2 --speed 20 --nodes 2" in str(caught.value)
    output = capsys.readouterr().out
    assert "2 of 3: resize, seed 2: gpu-1 never came" in output
    assert "3 of 3: resize, seed 3: " in output


def rehearse_with(
    monkeypatch: pytest.MonkeyPatch, *problems: str, ever: int = 2, choice: Choice | None = None
) -> list[ErrorOptions]:
    """Rehearse errors with a target that has covered some; return the options that it got."""
    got: list[ErrorOptions] = []
    commands = (CommandCoverage("up", 1, 2, 1, ever, 1, 1), CommandCoverage("teardown", 2, 4, 0, 4, 2, 2))
    coverage = ErrorCoverage(commands, 2, Path("calls.txt"), Path("covered.jsonl"), problems)

    def cover(_target: AwsTarget, _stack: StackHome, options: ErrorOptions, _console: object) -> ErrorCoverage:
        got.append(options)
        return coverage

    monkeypatch.setattr(AwsTarget, "rehearse_errors", cover)
    rehearse("aws-g6-pair", choice or Choice(errors="SlowDown,Blocked"))
    return got


def test_pairs_of_calls_and_errors_are_counted_for_each_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = Choice(errors="SlowDown,Blocked", seed=7, minutes=5)
    assert rehearse_with(monkeypatch, choice=choice) == [ErrorOptions("SlowDown,Blocked", 7, "all", 5)]
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines()]
    assert ["up", "1", "2", "1", "2", "1", "1"] in rows
    assert ["all", "3", "6", "1", "6", "3", "3"] in rows
    assert "calls: calls.txt; record: covered.jsonl" in output
    assert "pairs covered: 1 now, 6 of 6 with earlier rehearsals (2 codes at 3 kinds of call)" in output
    assert "of the codes that are handled alike, one at a call: 3 of 3" in output
    assert "not covered yet" not in output


def test_what_is_not_covered_is_counted_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearse_with(monkeypatch, ever=1)
    output = capsys.readouterr().out
    assert "pairs covered: 1 now, 5 of 6 with earlier rehearsals" in output
    assert "pairs not covered yet: 1; the next rehearsal continues with them" in output


def test_an_error_that_is_not_handled_fails_the_rehearsal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stop, match="not handled as expected: 1 error, see above; pairs covered: 1 now"):
        rehearse_with(monkeypatch, "up: ec2 CreateVpc: SlowDown: the command failed without naming it")
    assert "SlowDown: the command failed without naming it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(errors="SlowDown", scenario="job"), "--scenario: 'job' is not allowed with --errors; allowed: --seed"),
        (Choice(errors="SlowDown", seeds=2), "--seeds: 2 is not allowed with --errors; allowed: --seed"),
        (Choice(errors="SlowDown", speed=20), "--speed: 20 is not allowed with --errors; allowed: --seed"),
        (Choice(errors="SlowDown", nodes=4), "--nodes: 4 is not allowed with --errors; allowed: --seed"),
        (Choice(errors="SlowDown", minutes=-1), "--minutes: -1 is not allowed; allowed: 0 or more"),
        (Choice(commands="up"), "--commands: 'up' is not allowed; allowed: only with --errors"),
        (Choice(minutes=1), "--minutes: 1 is not allowed; allowed: only with --errors"),
    ],
)
def test_options_that_do_not_fit_errors_are_rejected(
    monkeypatch: pytest.MonkeyPatch, choice: Choice, message: str
) -> None:
    with pytest.raises(Stop, match=message):
        rehearse_with(monkeypatch, choice=choice)


def test_an_unknown_error_is_rejected() -> None:
    with pytest.raises(Stop, match="--errors: 'Flood' is not allowed; allowed: all, sample"):
        rehearse("aws-g6-pair", Choice(errors="Flood"))


def test_only_chosen_commands_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    rehearse("aws-full", Choice(errors="SlowDown,AccessDenied", commands="cost,logs", minutes=0))
    assert "0 of 6 with earlier rehearsals (2 codes at 3 kinds of call)" in capsys.readouterr().out


def test_an_unknown_command_is_rejected() -> None:
    with pytest.raises(Stop, match="--commands: 'down' is not allowed; allowed: all, or commands separated by commas"):
        rehearse("aws-g6-pair", Choice(errors="sample", commands="down"))


def test_the_documents_have_the_counts_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--minutes 0` counts and does nothing else."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    rehearse("aws-full", Choice(errors="all", minutes=0))
    counted = re.search(
        r"0 of ([\d,]+) with earlier .* \((\d+) codes at (\d+) kinds of call\)", capsys.readouterr().out
    )
    assert counted
    pairs, codes, calls = counted.groups()
    text = " ".join((REPO / "docs" / "aws.md").read_text().split())
    assert f"{calls} kinds of calls of all commands and {codes} codes, {pairs} pairs" in text
