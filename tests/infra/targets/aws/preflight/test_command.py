"""The commands check, cost and up with valid, invalid and missing credentials."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT, FAILED
from infra.targets.aws import account, credentials
from muster.commands.check import check
from tests.forked_muster import run_muster
from tests.infra.targets.aws.specs import spec
from tests.moto_server import ACCOUNT, Moto

ROOT = Path(__file__).parents[5]
PAIR = (ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml").read_text()


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.pair.yaml").write_text(PAIR)
    (tmp_path / "Pulumi.block.yaml").write_text(
        PAIR.replace("kind: spot, fallback: [on-demand]", "kind: reservation, reservation: cr-0123456789abcdef0")
    )
    return tmp_path


def muster(stacks: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    folders = {"MUSTER_STACKS": str(stacks), "MUSTER_HOME": str(stacks / "home"), "HOME": str(stacks)}
    return run_muster(*arguments, cwd=ROOT, env={**inherited, **folders, **env})


def test_check_reports_what_it_could_not_check(stacks: Path, aws: Moto) -> None:
    """moto has neither quotas nor policy simulation nor our images: each is reported and none is a crash."""
    done = muster(stacks, "check", "--stack", "pair", **aws.environment())
    assert f"checked account {ACCOUNT} as arn:aws:sts::{ACCOUNT}:" in done.stdout
    assert "nothing was created" in done.stdout
    assert done.returncode == BAD_INPUT
    assert "Pulumi.pair.yaml is valid, but this account cannot create it" in done.stderr
    assert "error    aws.ami" in done.stderr
    assert "vCPU quotas could not be checked" in done.stderr
    assert "testing" not in done.stdout + done.stderr


def test_check_reports_a_missing_reservation(stacks: Path, aws: Moto) -> None:
    done = muster(stacks, "check", "--stack", "block", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "'cr-0123456789abcdef0' does not exist in us-east-1" in done.stderr


def test_check_reports_a_failed_look_up_of_an_instance_type(stacks: Path, aws: Moto) -> None:
    (stacks / "Pulumi.pair.yaml").write_text(PAIR.replace("g6.8xlarge", "g4dn.metal"))
    aws.fail("DescribeInstanceTypes", "UnauthorizedOperation", times=5)
    done = muster(stacks, "check", "--stack", "pair", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "'g4dn.metal' is not in the catalog" in done.stderr
    assert "looked up in the account (DescribeInstanceTypes: UnauthorizedOperation)" in done.stderr


@pytest.mark.fault(38)
def test_expired_credentials_are_reported_and_no_other_call_is_made(stacks: Path, aws: Moto) -> None:
    aws.fail("GetCallerIdentity", "ExpiredToken", times=5)
    done = muster(stacks, "check", "--stack", "pair", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "the credentials have expired (ExpiredToken)" in done.stderr
    assert {call.action for call in aws.calls} == {"GetCallerIdentity"}


def test_an_unknown_profile_is_reported_with_the_fix(stacks: Path) -> None:
    done = muster(stacks, "check", "--stack", "pair", AWS_PROFILE="nope")
    assert done.returncode == FAILED
    assert (
        "the credentials cannot be read (ProfileNotFound: The config profile (nope) could not be found" in done.stderr
    )
    assert "fix: correct AWS_PROFILE" in done.stderr


def test_cost_falls_back_to_the_price_table_and_says_so(stacks: Path, aws: Moto) -> None:
    done = muster(stacks, "cost", "--stack", "pair", **aws.environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert "instance prices of 2026-08-22, us-east-1" in done.stdout
    assert "today's prices could not be read (GetProducts: " in done.stdout
    bad = muster(stacks, "cost", "--stack", "pair", AWS_PROFILE="nope")
    assert bad.returncode == 0
    assert "today's prices were not queried: aws: the credentials cannot be read" in bad.stdout


def test_without_credentials_check_opens_no_connection(
    stacks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening any connection fails the test."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "MUSTER_STACKS", "MUSTER_HOME"):
        monkeypatch.setenv(name, str(stacks))
    monkeypatch.setattr("socket.socket.connect", _refuse_connection)
    assert account.find_account(spec()) is None
    check("pair")
    assert (
        "no AWS credentials found: quotas, zones, capacity, images, permissions and today's prices are not checked"
        in capsys.readouterr().out
    )


@pytest.mark.fault(38)
def test_up_starts_nothing_without_credentials(stacks: Path) -> None:
    done = muster(stacks, "up", "--stack", "pair")
    assert done.returncode == FAILED
    assert "no AWS credentials found; nothing was started" in done.stderr
    assert "fix: `aws sso login`" in done.stderr
    assert not (stacks / "home").exists()


@pytest.mark.fault(38)
def test_up_starts_nothing_if_aws_rejects_the_credentials(stacks: Path, aws: Moto) -> None:
    aws.fail("GetCallerIdentity", "ExpiredToken", times=5)
    done = muster(stacks, "up", "--stack", "pair", **aws.environment())
    assert done.returncode == FAILED
    assert "AWS was not reached; nothing was started" in done.stderr
    assert "the credentials have expired (ExpiredToken)" in done.stderr
    assert not (stacks / "home").exists()


@pytest.mark.parametrize(
    ("variables", "files", "vendor", "expected"),
    [
        ({}, [], "QEMU", False),
        ({}, [], "Amazon EC2", True),
        ({"AWS_ACCESS_KEY_ID": "x"}, [], "QEMU", True),
        ({"AWS_PROFILE": "x"}, [], "QEMU", True),
        ({"AWS_PROFILE": ""}, [], "QEMU", False),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "x"}, [], "QEMU", True),
        ({}, [".aws/credentials"], "QEMU", True),
        ({}, [".aws/config"], "QEMU", True),
        ({"AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none"}, [".aws/config"], "QEMU", False),
    ],
)
def test_sources_of_credentials(
    tmp_path: Path, variables: dict[str, str], files: list[str], vendor: str, expected: bool
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    assert credentials.may_exist({"HOME": str(tmp_path), **variables}, tmp_path / "vendor") is expected


def test_a_machine_without_a_vendor_file_is_not_on_ec2(tmp_path: Path) -> None:
    assert not credentials.is_on_ec2(tmp_path / "nothing")


def _refuse_connection(*_: object) -> None:
    raise AssertionError("a connection was opened")
