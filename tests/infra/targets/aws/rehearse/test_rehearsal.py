"""The rehearsal of the g6 pair: up, a job on two nodes that Slurm launches, teardown, nothing left on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.infra.targets.aws.rehearse.run_rehearsal import list_remains, run_rehearsal

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

STACK = "aws-g6-pair"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def output(home: Path) -> str:
    return run_rehearsal(home, STACK, "--speed", "20")


def test_a_job_ran_on_both_nodes_and_teardown_left_nothing(output: str, home: Path) -> None:
    assert "ready: controller, up to 2 autoscaled nodes in " in output
    assert "the job ran on gpu-1, gpu-2" in output
    (receipt,) = (home / "rehearsals" / STACK / "receipts").glob("*.json")
    assert json.loads(receipt.read_text())["left"] == 0


def test_the_timeline_has_the_order_of_aws(output: str, home: Path) -> None:
    text = (home / "rehearsals" / STACK / "timeline.txt").read_text()
    moments = {match[2]: float(match[1]) for match in re.finditer(r"^ *([\d.]+) s  (.+)$", text, re.MULTILINE)}
    events = {re.sub(r"\s{2,}", " ", what): at for what, at in moments.items()}
    assert events["controller runs user data"] < events["gpu-1 pending"] < events["gpu-1 runs user data"]
    assert events["rehearsal teardown"] < events["gpu-1 terminated"]
    assert "denied" not in text


def test_nothing_of_the_rehearsal_is_left_on_this_machine(output: str, home: Path) -> None:
    assert list_remains(home, STACK) == []
