"""Remedies before another machine: DCGM's recorded results, when each level runs, the ladder of reset and reboot."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from slurm.health import dcgm, failed_job, gpu, gpu_processes, maintenance, nvlink, rdma, xid
from slurm.health.check import Check, Expected, HealthProblem
from slurm.health.drain import GOOD_ROUNDS, REASON_MAX_CHARS, TRIED_PREFIX, Decision, Service, decide, list_checks
from slurm.health.own_node import OwnNode
from slurm.health.registry import CHECKS, helps_to_replace, may_reboot, select_checks
from slurm.health.remedy import FORGET_S, REBOOT_S, RESET_S, RESET_SCRIPT, choose_remedy, list_failed, select_checks_of
from tests.slurm.stubbed_node import StubbedNode

GPUS = Expected(gpus=2)
OLD = "DCGM GPU Diagnostic"
"""Title of the results of release 3."""
RESET = {"reset": {"at": 0.0}}


def record(*results: dict[str, object], name: str = "software", title: str = "DCGM Diagnostic") -> str:
    """Return what `dcgmi diag -j` prints, in the form of release 4."""
    tests = [{"name": name, "results": list(results), "test_summary": {"status": "Fail"}}]
    return json.dumps({title: {"test_categories": [{"category": "Deployment", "tests": tests}]}, "metadata": {}})


def fail(gpu_id: int, text: str, severity: int) -> dict[str, object]:
    warning = {"error_category": 8, "error_id": 29, "error_severity": severity, "warning": text}
    return {"entity_group": "GPU", "entity_id": gpu_id, "status": "Fail", "warnings": [warning]}


@pytest.mark.parametrize(
    ("output", "problems"),
    [
        ("", []),
        ("Error: unable to establish a connection to the specified host: localhost\n", []),
        (record({"entity_group": "GPU", "entity_id": 0, "status": "Pass"}), []),
        (record({"status": "Skip", "info": ["Plugin is not allowed on this SKU"]}, name="pcie"), []),
        (record(fail(1, "Pending row remap", 6)), ["software failed on GPU 1: Pending row remap"]),
        # A setting that all machines of an image have in common must not drain them all.
        (record(fail(0, "Persistence Mode: disabled", 5), fail(1, "Persistence Mode: disabled", 5)), []),
        (record({"gpu_id": "3", "status": "Fail", "warnings": "ECC DBE"}, name="GPU Memory", title=OLD),
         ["GPU Memory failed on GPU 3: ECC DBE"]),
        (record({"gpu_ids": "0,1", "status": "FAIL"}, name="Persistence Mode", title=OLD), []),
        (record({"gpu_ids": "0,1", "status": "FAIL"}, name="PCIe", title=OLD),
         ["PCIe failed on GPU 0,1"]),
        ("Warning: x\n" + record(fail(0, "bad", 2)), ["software failed on GPU 0: bad"]),
        ('{"DCGM Diagnostic": {', ["cannot parse the output of dcgmi: '{\"DCGM Diagnostic\": {'"]),
    ],
)  # fmt: skip
def test_recorded_results_of_dcgm(output: str, problems: list[str]) -> None:
    assert dcgm.judge(output, GPUS) == problems


def test_each_level_of_dcgm_has_its_moment() -> None:
    def list_names(context: str) -> set[str]:
        return {check.name for check in select_checks(GPUS, context) if check.name.startswith("dcgm")}

    assert list_names("prolog") == {"dcgm"}
    assert list_names("failed-job") == {"dcgm-2"}
    assert list_names("maintenance") == {"dcgm-3"}
    assert select_checks(Expected(), "failed-job") == []


def run_script(script: str, folder: Path, **variables: str) -> str:
    """Run a check's script with a stub of dcgmi in a folder, and return what it prints."""
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    (folder / "script").write_text(script.replace("/run/muster", str(folder / "run")))
    done = subprocess.run(["sh", folder / "script"], env={"PATH": path, **variables}, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def with_dcgm(tmp_path: Path) -> Path:
    """Return a folder with a dcgmi that fails as the real one does if a test fails, and counts its calls."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "dcgmi"
    tool.write_text(f"#!/bin/sh\necho \"$*\" >>{tmp_path / 'calls'}\necho '{record(fail(0, 'bad', 2))}'\nexit 226\n")
    tool.chmod(0o755)
    return tmp_path


def set_age(folder: Path, name: str, minutes: float) -> None:
    at = time.time() - minutes * 60
    os.utime(folder / "run" / name, (at, at))


def test_the_prolog_uses_a_result_that_rounds_renew(with_dcgm: Path) -> None:
    """Level 1 takes seconds, and every job waits for the prolog."""
    script, calls = dcgm.QUICK.command(GPUS), with_dcgm / "calls"
    assert "bad" in run_script(script, with_dcgm)
    for minutes, job, count in [(9, "", 1), (12, "7", 1), (12, "", 2), (14, "7", 2), (16, "7", 3)]:
        set_age(with_dcgm, "dcgm-1.json", minutes)
        run_script(script, with_dcgm, **({"SLURM_JOB_ID": job} if job else {}))
        assert calls.read_text().splitlines() == ["diag -r 1 -j"] * count


def test_a_reset_removes_the_result_of_level_1(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "run").mkdir()
    for name, script in {"systemctl": "exit 3", "nvidia-smi": f"touch {tmp_path / 'was-reset'}"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    result = tmp_path / "run" / "dcgm-1.json"
    result.write_text(record(fail(0, "bad", 2)))
    run_script(RESET_SCRIPT, tmp_path)
    assert (tmp_path / "was-reset").exists()
    assert not result.exists()


@pytest.mark.nightly_cases("60")
@pytest.mark.parametrize("seconds", ["60", "1"])
def test_level_3_ends_with_the_reservation(with_dcgm: Path, seconds: str) -> None:
    tool = with_dcgm / "bin" / "dcgmi"
    tool.write_text(tool.read_text().replace("exit 226", "sleep 3; exit 226"))
    output = run_script(dcgm.DEEP.command(GPUS), with_dcgm, **{dcgm.DEEP_LIMIT: seconds})
    assert dcgm.judge(output, GPUS) == ([] if seconds == "1" else ["software failed on GPU 0: bad"])


def test_the_end_of_a_maintenance_reservation_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("ReservationName={} StartTime=2026-11-17T18:00:00 EndTime=2026-11-17T{}:00:00 Duration=02:00:00 Nodes={} "
            "NodeCnt=4 Flags={},SPEC_NODES Users=root State={}")  # fmt: skip
    lines = [line.format("a", 20, "gpu-[7-9]", "MAINT", "ACTIVE"), line.format("b", 21, "gpu-[1-4]", "DAILY", "ACTIVE"),
             line.format("c", 22, "gpu-[1-4]", "MAINT", "INACTIVE"),
             line.format("d", 23, "gpu-[1-4]", "IGNORE_JOBS,MAINT", "ACTIVE")]  # fmt: skip
    node = StubbedNode.create(tmp_path)
    listed = "\n".join(lines)
    node.write_tool("scontrol", f"""case "$2 $3" in
        "reservation "*) echo '{listed}' ;;
        "hostnames gpu-[1-4]") printf "gpu-1\\ngpu-2\\ngpu-3\\ngpu-4\\n" ;;
        "hostnames gpu-[7-9]") printf "gpu-7\\ngpu-8\\ngpu-9\\n" ;;
        *) exit 1 ;;
        esac""")  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    ends = {}
    for name in ("gpu-1", "gpu-5"):
        monkeypatch.setenv("SLURMD_NODENAME", name)
        ends[name] = OwnNode(GPUS, tmp_path).read_maintenance_end()
    assert ends == {"gpu-1": datetime(2026, 11, 17, 23).timestamp(), "gpu-5": None}


def test_level_2_runs_at_most_once_an_hour(with_dcgm: Path) -> None:
    script = dcgm.AFTER_FAILURE.command(GPUS)
    assert [bool(run_script(script, with_dcgm)) for _ in range(2)] == [True, False]
    set_age(with_dcgm, "dcgm-2", 61)
    assert run_script(script, with_dcgm)
    assert (with_dcgm / "calls").read_text().splitlines() == ["diag -r 2 -j"] * 2


def test_without_dcgm_nothing_is_checked(tmp_path: Path) -> None:
    for check in (dcgm.QUICK, dcgm.AFTER_FAILURE, dcgm.DEEP):
        assert run_script(check.command(GPUS), tmp_path) == ""


@pytest.mark.parametrize(
    ("status", "failure"),
    [("0", False), ("768", True), ("11", True), ("15", False), ("9", False), (str(143 << 8), False), ("", False)],
)
def test_only_a_job_that_failed_by_itself_is_followed_by_a_diagnosis(status: str, failure: bool) -> None:
    assert failed_job.is_failure({"SLURM_JOB_EXIT_CODE": status}) is failure


def test_steps_of_other_jobs_are_seen() -> None:
    processes = "12 /usr/sbin/slurmstepd infinity\n363 slurmstepd: [3.extern]\n400 slurmstepd: [4.batch]\n"
    assert failed_job.find_jobs(processes) == {"3", "4"}
    assert failed_job.find_jobs("12 /usr/sbin/slurmstepd infinity\n") == set()


@pytest.mark.parametrize(
    ("checks", "attempts", "now", "remedy", "failed"),
    [
        ([gpu.CHECK], {}, 0.0, "reset", []),
        ([gpu.CHECK], {"reset": {"at": 0.0}}, RESET_S - 1, None, []),
        ([gpu.CHECK], {"reset": {"at": 0.0}}, RESET_S, "reboot", []),
        ([gpu.CHECK], {**RESET, "reboot": {"at": 200.0}}, 300.0, None, []),
        ([gpu.CHECK], {**RESET, "reboot": {"at": 200.0, "booted": True}}, 300.0, None, ["reset", "reboot"]),
        ([gpu.CHECK], {**RESET, "reboot": {"at": 200.0}}, 200.0 + REBOOT_S, None, ["reset", "reboot"]),
        ([gpu.CHECK], {"reset": {"at": 0.0}}, FORGET_S, "reset", []),
        ([gpu.CHECK, nvlink.CHECK], {}, 0.0, "reset", []),
        ([gpu.CHECK, xid.CHECK], {}, 0.0, "reboot", []),
        ([xid.CHECK], {"reboot": {"at": 0.0, "booted": True}}, 9.0, None, ["reboot"]),
        ([], {}, 0.0, None, []),
        # A process that a crash has left on the GPU is back after no reboot, and hides no other problem.
        ([xid.CHECK, gpu_processes.CHECK], {}, 0.0, "reboot", []),
        ([xid.CHECK, gpu_processes.CHECK], {"reboot": {"at": 0.0, "booted": True}}, 9.0, None, ["reboot"]),
        ([gpu.CHECK, gpu_processes.CHECK], {}, 0.0, "reset", []),
        ([rdma.PORTS, gpu_processes.CHECK], {}, 0.0, None, []),
        ([gpu_processes.CHECK], {}, 0.0, None, []),
    ],
)  # fmt: skip
def test_the_ladder(
    checks: list[Check], attempts: dict[str, dict[str, object]], now: float, remedy: str | None, failed: list[str]
) -> None:
    assert choose_remedy(checks, attempts, now) == remedy
    assert list_failed(checks, attempts, now) == failed


STRANGER = "gpu-processes: python (pid 345 of ann) uses a GPU and belongs to no job"


@pytest.mark.parametrize(
    ("reason", "reboots", "replaced"),
    [
        (f"health: {STRANGER}", False, False),
        (f"health: {STRANGER}; {STRANGER}; gpu-processes: and 7 more", False, False),
        # Cut off within the name of a check.
        (f"health: {STRANGER}; {STRANGER}".ljust(REASON_MAX_CHARS - 9, "x") + "; gpu-pro", False, False),
        (f"health: xid: Xid 79 on GPU 0; {STRANGER}", True, True),
        (f"health: {STRANGER}; xid: Xid 79 on GPU 0", True, True),
        (f"health: rdma: port mlx5_3:1 is DOWN; {STRANGER}", False, True),
        (f"health: mounts: /shared is not mounted; gpu: exit code 9; {STRANGER}", False, True),
        ("health: fabric: gpu-1 is slow", False, True),
    ],
)
def test_a_process_of_no_job_decides_only_alone(reason: str, reboots: bool, replaced: bool) -> None:
    assert (may_reboot(reason), helps_to_replace(reason)) == (reboots, replaced)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if "replace" in check.remedies], ids=lambda check: check.name
)
def test_a_cut_off_reason_keeps_what_decides(check: Check) -> None:
    """However many processes are on the GPUs, other problems come first: a round reports its checks in this order."""
    problems = [
        HealthProblem(each.name, "x" * 60)
        for each in CHECKS
        for _ in range(9 if each == gpu_processes.CHECK else 1)
        if each in (check, gpu_processes.CHECK)
    ]
    reason = decide(problems, Service(False), 0).reason
    assert len(reason) == REASON_MAX_CHARS
    assert helps_to_replace(reason)


def test_a_cause_that_may_be_elsewhere_is_answered_by_neither_reset_nor_reboot() -> None:
    for check in CHECKS:
        if check.blame != "node":
            assert {"reset", "reboot"}.isdisjoint(check.remedies)


def test_problems_of_users_choose_no_remedy() -> None:
    problems = [HealthProblem("job-disk", "full", "user"), HealthProblem("gpu", "gone")]
    assert select_checks_of(problems, CHECKS) == [gpu.CHECK]
    assert select_checks_of(problems[:1], CHECKS) == []


def test_the_reason_names_what_did_not_help() -> None:
    problems = [HealthProblem("gpu", "gone")]
    reason = f"{TRIED_PREFIX}reset and reboot: gpu: gone"
    assert decide(problems, Service(True, "health: gpu: gone"), 0, ["reset", "reboot"]) == Decision("drain", reason, 0)
    assert decide([], Service(True, reason), GOOD_ROUNDS - 1) == Decision("resume")
    assert list_checks("health: gpu: gone; xid: Xid 79 on a: b") == ["gpu", "xid"]
    assert list_checks(reason) == ["gpu"]
    assert list_checks("new memory") == []


def test_the_text_of_a_problem_does_not_look_like_another_problem() -> None:
    problem = HealthProblem("dcgm", "memory failed; mounts: gone\n  on\tGPU 1")
    reason = decide([problem, HealthProblem("gpu", "gone")], Service(False), 0).reason
    assert reason == "health: dcgm: memory failed, mounts: gone on GPU 1; gpu: gone"
    assert list_checks(reason) == ["dcgm", "gpu"]


BROKEN_GPU = {"gpus": 1, "group": "gpu", "max_drained_percent": 20}


@pytest.fixture
def broken(tmp_path: Path) -> StubbedNode:
    """Return a node whose GPU does not answer; resets and reboots are only recorded."""
    node = StubbedNode.create(tmp_path)
    node.write_tool("nvidia-smi", "exit 9")
    node.write_tool("dmesg", "true")
    for tool in ("systemd-run", "systemctl"):
        node.write_tool(tool, f'echo "{tool} $*" | head -n 1 >>{tmp_path / "remedies"}')
    return node


def read_remedies(node: StubbedNode) -> list[str]:
    path = node.folder / "remedies"
    lines = path.read_text().splitlines() if path.exists() else []
    return ["reset" if "gpu-reset" in line else "reboot" for line in lines if "reset" in line or "reboot" in line]


def age_attempts(node: StubbedNode, seconds: float) -> None:
    path = node.folder / "health-remedies"
    attempts = {
        remedy: {**attempt, "at": attempt["at"] - seconds} for remedy, attempt in json.loads(path.read_text()).items()
    }
    path.write_text(json.dumps(attempts))


def test_an_idle_broken_node_is_reset_then_rebooted_then_left_to_be_replaced(broken: StubbedNode) -> None:
    broken.run("interval", **BROKEN_GPU)
    assert (broken.state, read_remedies(broken)) == ("gpu-1|drained|health: gpu: exit code 9", [])
    for _ in range(2):
        broken.run("interval", **BROKEN_GPU)
        assert read_remedies(broken) == ["reset"]
    age_attempts(broken, RESET_S)
    for _ in range(2):
        broken.run("interval", **BROKEN_GPU)
        assert read_remedies(broken) == ["reset", "reboot"]
    # The first round after the boot finds the same fault.
    (broken.folder / "run" / "gate").unlink()
    broken.run("interval", **BROKEN_GPU)
    assert broken.state == "gpu-1|drained|health: after reset and reboot: gpu: exit code 9"
    assert read_remedies(broken) == ["reset", "reboot"]


def test_nothing_is_reset_or_rebooted_while_jobs_run_or_a_person_has_the_node(broken: StubbedNode) -> None:
    for state in ("gpu-1|draining|health: gpu: exit code 9", "gpu-1|drained|new memory"):
        broken.set_state(state)
        broken.run("interval", **BROKEN_GPU)
        assert (broken.state, read_remedies(broken)) == (state, [])


def test_deep_checks_start_once_a_day_on_an_idle_node_in_a_maintenance_reservation(tmp_path: Path) -> None:
    node = StubbedNode.create(tmp_path)
    rows = "0, 0, 0, 0, 0x0"
    node.write_tool("nvidia-smi", f"echo '{rows}'")
    for tool in ("dmesg", "dcgmi"):
        node.write_tool(tool, "true")
    node.write_tool("systemd-run", f'echo "$*" >>{tmp_path / "started"}')
    last_query = tmp_path / "run" / "maintenance-asked"
    node.run("interval", gpus=1)
    assert not (tmp_path / "started").exists()
    node.set_state("gpu-1|maint|none")
    node.run("interval", gpus=1)
    assert not (tmp_path / "started").exists()
    for _ in range(2):
        at = time.time() - maintenance.ASK_S - 1
        os.utime(last_query, (at, at))
        node.run("interval", gpus=1)
        assert (tmp_path / "started").read_text().split()[-1:] == ["maintenance"]
        assert len((tmp_path / "started").read_text().splitlines()) == 1
    # systemd does not tell it the name of the node.
    assert "--setenv=SLURMD_NODENAME=gpu-1" in (tmp_path / "started").read_text().split()


def test_a_users_process_on_a_gpu_leads_neither_to_a_reset_nor_to_a_reboot(broken: StubbedNode) -> None:
    """A cron job, for example, would be back each time; the node returns once the process is gone."""
    # No job of a cluster that runs on this machine has this uid.
    user = 63345 if os.geteuid() == 0 else os.geteuid()
    process = subprocess.Popen(["sleep", "600"], user=user)
    answers = f"*compute-apps*) ps -o pid= -p {process.pid} | tr -d ' ' ;; *) echo 0, 0, 0, 0, 0x0"
    broken.write_tool("nvidia-smi", f"case $* in {answers} ;; esac")
    try:
        for _ in range(4):
            broken.run("interval", **BROKEN_GPU)
        assert broken.state.startswith(f"gpu-1|drained|health: gpu-processes: sleep (pid {process.pid} of ")
        assert read_remedies(broken) == []
    finally:
        process.kill()
        process.wait()
    for _ in range(GOOD_ROUNDS):
        broken.run("interval", **BROKEN_GPU)
    assert (broken.state, read_remedies(broken)) == ("gpu-1|idle|none", [])
