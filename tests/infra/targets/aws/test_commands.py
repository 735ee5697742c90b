"""The commands check, cost and up on a machine without Docker and without an AWS account."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT
from tests.forked_muster import run_muster

ROOT = Path(__file__).parents[4]
PAIR = (ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml").read_text()


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.pair.yaml").write_text(PAIR)
    (tmp_path / "Pulumi.poor.yaml").write_text(PAIR.replace("usd_per_hour: 6", "usd_per_hour: 1"))
    (tmp_path / "Pulumi.typo.yaml").write_text(PAIR.replace("g6.8xlarge", "g6.8xlrage"))
    return tmp_path


def muster(stacks: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = {"MUSTER_STACKS": str(stacks), "MUSTER_HOME": str(stacks / "home")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = {**inherited, **folders, "HOME": str(stacks), "DOCKER_HOST": f"unix://{stacks}/no-engine.sock"}
    return run_muster(*arguments, cwd=ROOT, env=env)


def test_check_prints_nodes_and_price(stacks: Path) -> None:
    done = muster(stacks, "check", "--stack", "pair")
    assert (done.returncode, done.stderr) == (0, "")
    account, line = done.stdout.splitlines()
    unchecked = "quotas, zones, capacity, images, permissions and today's prices"
    assert account == f"no AWS credentials found: {unchecked} are not checked"
    assert line.startswith("✓ Pulumi.pair.yaml: cluster pair, controller, up to 2 autoscaled nodes, 0.")
    assert line.endswith(" USD per hour on target aws")


def test_check_reports_the_fix_of_a_typo(stacks: Path) -> None:
    done = muster(stacks, "check", "--stack", "typo")
    assert done.returncode == BAD_INPUT
    assert "fix: write `instance_type: g6.8xlarge`" in done.stderr


def test_cost_shows_each_part_and_what_is_not_included(stacks: Path) -> None:
    done = muster(stacks, "cost", "--stack", "pair")
    assert done.returncode == 0
    for text in ("groups.gpu", "g6.8xlarge, spot, then on-demand", "NAT gateway", "total", "not included: data"):
        assert text in done.stdout


def test_cost_works_over_budget(stacks: Path) -> None:
    done = muster(stacks, "cost", "--stack", "poor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "total" in done.stdout


def test_up_over_budget_is_an_error(stacks: Path) -> None:
    done = muster(stacks, "up", "--stack", "poor")
    assert done.returncode == BAD_INPUT
    assert "nothing was started" in done.stderr
    assert "1 is less than the" in done.stderr
    assert not (stacks / "home").exists()
