"""Checks that rounds do not run: their drains end only after a remedy and a good repetition, or by another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm.health.check import Expected, HealthProblem
from slurm.health.drain import GOOD_ROUNDS
from slurm.health.recheck import Recheck, list_beyond_rounds, list_pending
from slurm.health.remedy import REBOOT_S, RESET_S
from tests.slurm.stubbed_node import StubbedNode
from tests.slurm.test_health_remedies import age_attempts, fail, read_remedies, record

GPU = {"gpus": 1, "group": "gpu", "max_drained_percent": 20}
REASON = "health: dcgm-3: memory failed on GPU 1"
GOOD = record({"entity_group": "GPU", "entity_id": 0, "status": "Pass"})


@pytest.fixture
def drained(tmp_path: Path) -> StubbedNode:
    """Return a node that a deep check drained, and on which every round is healthy; remedies are only recorded."""
    node = StubbedNode.create(tmp_path)
    node.write_tool("nvidia-smi", "echo '0, 0, 0, 0, 0x0'")
    node.write_tool("dmesg", "true")
    set_diagnosis(node, GOOD)
    for tool in ("systemd-run", "systemctl"):
        node.write_tool(tool, f'echo "{tool} $*" | head -n 1 >>{tmp_path / "remedies"}')
    node.set_state(f"gpu-1|drained|{REASON}")
    node.rounds.write_text("0")
    return node


def set_diagnosis(node: StubbedNode, deep: str) -> None:
    """Set what levels 2 and 3 print; level 1 is always good."""
    node.write_tool(
        "dcgmi", f"echo \"$*\" >>{node.folder / 'calls'}\n[ \"$3\" = 1 ] || {{ echo '{deep}'; exit; }}\necho '{GOOD}'"
    )


def count_rechecks(node: StubbedNode) -> int:
    return (node.folder / "remedies").read_text().count("recheck dcgm-3")


def run_rounds(node: StubbedNode, count: int = GOOD_ROUNDS + 1) -> None:
    for _ in range(count):
        assert node.run("interval", **GPU).returncode == 0


def boot(node: StubbedNode) -> None:
    (node.folder / "run" / "gate").unlink()


def test_healthy_rounds_do_not_end_the_drain_of_a_deep_check(drained: StubbedNode) -> None:
    run_rounds(drained)
    assert (drained.state, read_remedies(drained)) == (f"gpu-1|drained|{REASON}", ["reset"])
    age_attempts(drained, RESET_S)
    run_rounds(drained)
    # The reset has had its time: the check runs again, once, and nothing else happens meanwhile.
    assert (drained.state, read_remedies(drained)) == (f"gpu-1|drained|{REASON}", ["reset"])
    assert count_rechecks(drained) == 1
    # systemd does not tell it the name of the node.
    assert "--setenv=SLURMD_NODENAME=gpu-1" in (drained.folder / "remedies").read_text()


def test_a_good_repetition_after_the_reset_returns_the_node(drained: StubbedNode) -> None:
    run_rounds(drained)
    age_attempts(drained, RESET_S)
    run_rounds(drained)
    assert drained.run("recheck", "dcgm-3", **GPU).returncode == 0
    assert (drained.folder / "calls").read_text().splitlines()[-1] == "diag -r 3 -j"
    run_rounds(drained, GOOD_ROUNDS - 1)
    assert drained.state == f"gpu-1|drained|{REASON}"
    run_rounds(drained, 1)
    assert (drained.state, read_remedies(drained)) == ("gpu-1|idle|none", ["reset"])


@pytest.mark.parametrize(
    "output",
    [record(fail(0, "bad", 2)), pytest.param("Error: unable to establish a connection", marks=pytest.mark.nightly)],
)
def test_a_repetition_without_a_good_result_goes_on_to_the_reboot_and_another_machine(
    drained: StubbedNode, output: str
) -> None:
    set_diagnosis(drained, output)
    run_rounds(drained)
    age_attempts(drained, RESET_S)
    run_rounds(drained, 1)
    drained.run("recheck", "dcgm-3", **GPU)
    run_rounds(drained)
    assert (drained.state, read_remedies(drained)) == (f"gpu-1|drained|{REASON}", ["reset", "reboot"])
    boot(drained)
    run_rounds(drained)
    # Not given up before the check has run again.
    assert (drained.state, count_rechecks(drained)) == (f"gpu-1|drained|{REASON}", 2)
    drained.run("recheck", "dcgm-3", **GPU)
    run_rounds(drained)
    tried = "health: after reset and reboot: dcgm-3: memory failed on GPU 1"
    assert (drained.state, read_remedies(drained)) == (f"gpu-1|drained|{tried}", ["reset", "reboot"])


def test_a_fault_that_returns_after_a_good_repetition_counts_again(drained: StubbedNode) -> None:
    (drained.folder / "health-recheck").write_text(json.dumps({"at": 1.0, "passed": True}))
    drained.set_state("gpu-1|idle|none")
    set_diagnosis(drained, record(fail(0, "bad", 2)))
    drained.run("maintenance", **GPU)
    assert drained.state == "gpu-1|drained|health: dcgm-3: software failed on GPU 0: bad"
    run_rounds(drained)
    assert drained.state == "gpu-1|drained|health: dcgm-3: software failed on GPU 0: bad"


def test_a_disabled_check_drains_no_longer(drained: StubbedNode) -> None:
    for _ in range(GOOD_ROUNDS):
        drained.run("interval", **GPU, disabled=["disk", "clock", "dcgm-3"])
    assert drained.state == "gpu-1|idle|none"


def test_what_a_round_could_not_see_is_pending() -> None:
    assert set(list_beyond_rounds()) == {"dcgm-2", "dcgm-3"}
    reason = "health: after reset: gpu: gone; dcgm-2: memory failed; dcgm-3: PCIe failed"
    both = [HealthProblem("dcgm-2", "memory failed"), HealthProblem("dcgm-3", "PCIe failed")]
    assert list_pending(reason, [], Expected()) == both
    assert list_pending(reason, [HealthProblem("dcgm-2", "again")], Expected()) == both[1:]
    assert list_pending("new memory", [], Expected()) == []


def test_a_repetition_is_due_once_after_each_remedy() -> None:
    reset = {"reset": {"at": 100.0}}
    assert not Recheck(50.0).is_due({}, 100.0)
    assert not Recheck(50.0).is_due(reset, 100.0 + RESET_S - 1)
    assert Recheck(50.0).is_due(reset, 100.0 + RESET_S)
    assert not Recheck(100.0 + RESET_S).is_due(reset, 900.0)
    assert Recheck(300.0).is_due({**reset, "reboot": {"at": 400.0}}, 400.0 + REBOOT_S)
    assert [Recheck(0.0, passed=None).is_running(now) for now in (3600.0, 3661.0)] == [True, False]


@pytest.mark.parametrize("other", ["none", "runs", "ran"])
def test_level_2_counts_only_if_its_job_was_alone_until_the_end(tmp_path: Path, other: str) -> None:
    node = StubbedNode.create(tmp_path)
    node.variables.update(SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="256")
    began = tmp_path / "began"
    meanwhile = f"touch {tmp_path / 'run' / 'job-started'}" if other == "ran" else "true"
    node.write_tool("dcgmi", f"touch {began}; sleep 0.1; {meanwhile}; echo '{record(fail(0, 'bad', 2))}'")
    listed = "9 slurmstepd: [8.batch]" if other == "runs" else "9 slurmstepd: [7.extern]"
    node.write_tool("pgrep", f"[ ! -e {began} ] || echo '{listed}'")
    done = node.run("epilog", gpus=1)
    assert (done.returncode, began.exists()) == (0, True)
    if other == "none":
        assert node.state == "gpu-1|drained|health: dcgm-2: software failed on GPU 0: bad"
    else:
        assert node.state == "gpu-1|idle|none"
        assert done.stderr == "health: another job ran during the diagnosis; its result is not used\n"


def test_the_prolog_tells_the_epilog_of_another_job(tmp_path: Path) -> None:
    node = StubbedNode.create(tmp_path)
    assert node.run("prolog").returncode == 0
    assert (tmp_path / "run" / "job-started").exists()


@pytest.mark.parametrize("kind", ["interval", "prolog"])
def test_a_failing_result_of_level_1_is_not_used_again(drained: StubbedNode, kind: str) -> None:
    drained.set_state("gpu-1|idle|none")
    drained.write_tool("dcgmi", f"echo '{record(fail(0, 'bad', 2))}'; exit 226")
    drained.run(kind, **GPU)
    assert drained.state == "gpu-1|drained|health: dcgm: software failed on GPU 0: bad"
    set_diagnosis(drained, GOOD)
    run_rounds(drained, GOOD_ROUNDS)
    assert drained.state == "gpu-1|idle|none"
