"""Health checks: how real tool output is judged, that no answer is a problem, and who may drain and resume a node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.health import clock, efa, filesystem, gpu, nvlink, other_clock, software, xid
from slurm.health.check import Check, Expected, HealthProblem, judge_answer
from slurm.health.drain import FABRIC_PREFIX, GOOD_ROUNDS, PREFIX, Decision, Service, decide
from slurm.health.filesystem import PRIVATE_FOLDERS
from slurm.health.registry import CHECKS, find_problems, run_scripts
from tests.slurm.stubbed_node import StubbedNode

P5 = Expected(gpus=2, nvlinks=3, efa=2, mounts=("/shared",))
HEALTHY = "0, 0, 0, 0, 0x0000000000000004\n1, 0, 0, 0, 0x0000000000000001\n"
LINKS = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
    "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: 26.562 GB/s\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"
    "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n"
)
TRACKING = "Reference ID    : A9FEA97B (169.254.169.123)\nSystem time     : {} seconds {} of NTP time\n"
# The rows of /, /var and /tmp.
DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n" + "/dev/root 101430960 {0} {1} 99% /\n" * 3


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("output", "problems"),
    [
        (HEALTHY, []),
        ("0, 0, 0, 0, 0x0\n", ["1 of 2 GPUs answer"]),
        ("0, 3, 0, 0, 0x0\n1, 0, 0, 0, 0x0\n", ["GPU 0 has 3 uncorrectable memory errors"]),
        ("0, 0, 0, 0, 0x0\n1, 1, 0, 0, 0x0\n", ["GPU 1 has 1 uncorrectable memory error"]),
        ("0, 0, 1, 0, 0x0\n1, 0, 0, 1, 0x0\n", ["GPU 0 needs a reset to replace bad memory rows",
                                                "GPU 1 could not replace bad memory rows"]),
        ("0, 0, 0, 0, 0x48\n1, 0, 0, 0, 0x80\n", ["GPU 0 runs slow: hardware slowdown",
                                                  "GPU 0 runs slow: thermal slowdown", "GPU 1 runs slow: power brake"]),
        ("0, [N/A], [N/A], [N/A], 0x0\n1, [N/A], [N/A], [N/A], 0x0\n", []),
        ("No devices were found\n", ["1 of 2 GPUs answer", "cannot parse 'No devices were found'"]),
        ("", ["0 of 2 GPUs answer"]),
    ],
)  # fmt: skip
def test_gpu_problems(output: str, problems: list[str]) -> None:
    assert gpu.judge(output, P5) == problems


def test_a_software_version_that_changed_since_set_up_is_a_problem(tmp_path: Path) -> None:
    driver, module, gone = (str(tmp_path / name) for name in ("driver", "module", "gone"))
    Path(driver).write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.91.07  Release Build\nGCC\n")
    Path(module).write_text("3.3.0g\n")

    def check_software(**components: tuple[str, str]) -> list[str]:
        expected = Expected(software={name: {"version": had, "file": file} for name, (had, file) in components.items()})
        if not software.CHECK.applies(expected):
            return []
        (answer,) = run_scripts([(software.CHECK.command(expected), 10.0)])
        return [str(problem) for problem in judge_answer(software.CHECK, answer, expected)]

    assert check_software(driver=("595.91.07", driver), efa=("3.3.0", module), libfabric=("2.6.0", "")) == []
    assert check_software(libfabric=("2.6.0", "")) == []
    assert check_software(driver=("595.91", driver), efa=("3.3", module), gdrcopy=("2.5.2", gone)) == [
        f"software: driver is no longer 595.91: {driver} shows 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
        " 595.91.07 Release Build'",
        f"software: efa is no longer 3.3: {module} shows '3.3.0g'",
        f"software: gdrcopy is no longer 2.5.2: {gone} shows nothing",
    ]


@pytest.mark.fault(34)
def test_only_fatal_xids_are_problems() -> None:
    log = (
        "[  88.1] NVRM: Xid (PCI:0000:53:00): 31, pid=411, Ch 00000008, MMU Fault\n"
        "[ 901.7] NVRM: Xid (PCI:0000:c6:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "[ 902.7] NVRM: Xid (PCI:0000:c6:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "[ 999.0] NVRM: Xid (PCI:0000:64:00): 95, pid=7, Uncontained ECC error.\n"
    )
    assert xid.judge(log, P5) == [
        "Xid 79 on 0000:c6:00: GPU has fallen off the bus (2 times)",
        "Xid 95 on 0000:64:00: uncontained memory error",
    ]
    assert xid.judge("", P5) == []


def test_nvlink_counts_active_links() -> None:
    assert nvlink.judge(LINKS, P5) == ["GPU 1 has 2 of 3 links"]
    assert nvlink.judge(LINKS.replace("<inactive>", "26.562 GB/s"), P5) == []
    assert nvlink.judge("", P5) == ["2 GPUs are not listed"]
    assert nvlink.judge("", replace(P5, gpus=1)) == ["1 GPU is not listed"]


def test_efa_counts_amazons_devices() -> None:
    good = "rdmap86s0 0x1d0f 4: ACTIVE\nrdmap87s0 0x1d0f 4: ACTIVE\nmlx5_0 0x15b3 1: DOWN\n"
    assert efa.judge(good, P5) == []
    assert efa.judge(good.replace("rdmap87s0 0x1d0f 4: ACTIVE", "rdmap87s0 0x1d0f 1: DOWN"), P5) == [
        "port of rdmap87s0 is DOWN"
    ]
    assert efa.judge("", P5) == ["0 of 2 devices are present"]


def test_clock_offset() -> None:
    assert clock.judge(TRACKING.format("0.000012", "slow"), P5) == []
    assert clock.judge(TRACKING.format("3.204", "fast"), P5) == ["3.2 s fast"]
    assert clock.judge("absent\n", P5) == []
    assert clock.judge("506 Cannot talk to daemon", P5) != []


def test_a_clock_is_compared_with_the_controllers() -> None:
    fix = "set it with `chronyc makestep` or `timedatectl set-ntp true`"
    assert clock.judge("offset 0.912\nabsent\n", P5) == []
    assert clock.judge("offset 3600.042\nabsent\n", P5) == [f"3600.0 s ahead of the controller's; {fix}"]
    assert clock.judge("offset -30.000\nabsent\n", P5) == [f"30.0 s behind the controller's; {fix}"]
    # chrony believes its server, and the controller has another one.
    offsets = "offset -30.000\n" + TRACKING.format("0.000012", "slow")
    assert clock.judge(offsets, P5) == [f"30.0 s behind the controller's; {fix}"]


@pytest.mark.parametrize(
    ("sent_ms", "theirs_ms", "received_ms", "ahead_s"),
    [
        (1000, 1010, 1020, 0.0),
        (3_600_000, 5, 3_600_010, 3600.0),
        (0, 3_600_005, 10, -3600.0),
        # Around midnight: of the answer, of one of the two machines, and of both.
        (86_399_990, 0, 10, 0.0),
        (5, 86_399_000, 15, 1.01),
        (86_399_000, 500, 86_399_000, -1.5),
        # The true time of the answer is not known better than by half of its travel, and this process may have waited.
        (0, 10, 500, 0.24),
        (0, 10, 501, None),
        (86_399_999, 10, 3000, None),
    ],
)
def test_the_times_of_two_days_are_compared(
    sent_ms: int, theirs_ms: int, received_ms: int, ahead_s: float | None
) -> None:
    assert other_clock.compare(sent_ms, theirs_ms, received_ms) == ahead_s


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may open raw sockets")
def test_a_kernel_answers_with_its_time() -> None:
    for address in ("127.0.0.1", "localhost"):
        # On a loaded machine, this process may not be run in time to read an answer.
        offsets = (other_clock.measure_offset(address) for _ in range(20))
        offset_s = next((offset for offset in offsets if offset is not None), None)
        assert offset_s is not None
        assert abs(offset_s) < clock.MAX_OFFSET_S


def test_a_slow_answer_is_not_used_and_the_machine_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer came at once; names are resolved first, because an answer has only an address."""
    answers = [other_clock.compare(0, 10, 3000), other_clock.compare(3000, 3000, 3000)]
    addresses = []

    def ask(address: str, _sequence: int) -> float | None:
        addresses.append(address)
        return answers.pop(0)

    monkeypatch.setattr(other_clock, "_ask", ask)
    assert other_clock.measure_offset("localhost") == 0.0
    assert addresses == ["127.0.0.1"] * 2


def test_a_machine_whose_name_is_not_known_gives_no_offset() -> None:
    assert other_clock.measure_offset("no-such-machine.invalid") is None


def test_free_disk_space() -> None:
    free, full = DF.format(50_000_000, 51_000_000), DF.format(101_000_000, 430_960)
    assert [filesystem.judge_disk(free, P5), filesystem.judge_job_disk(free, P5)] == [[], []]
    assert [filesystem.judge_disk(full, P5), filesystem.judge_job_disk(full, P5)] == [
        ["/ has 420 MB free of 99053"],
        [],
    ]


def test_a_disk_that_jobs_fill_is_the_fault_of_users() -> None:
    full = f"{DF.format(101_000_000, 430_960)}90000000\t{PRIVATE_FOLDERS}\n"
    assert filesystem.judge_disk(full, P5) == []
    assert filesystem.judge_job_disk(full, P5) == ["/ has 420 MB free of 99053, and jobs use 87890"]
    # Jobs are not the cause on another disk, or if the disk would be nearly full without them.
    rows = full.splitlines(keepends=True)
    other = "".join([*rows[:2], "/dev/var 9000 1 8999 1% /var\n", *rows[3:]])
    assert filesystem.judge_disk(other, P5) == ["/ has 420 MB free of 99053"]
    assert filesystem.judge_disk(full.replace("90000000\t", "90000\t"), P5) == ["/ has 420 MB free of 99053"]


def test_the_files_of_jobs_are_only_counted_on_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    for name, text in {"df": DF.format(50_000_000, 51_000_000), "du": f"90000000\t{PRIVATE_FOLDERS}\n"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        (tmp_path / name).chmod(0o755)

    def print_disks() -> str:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        script = filesystem.DISK.command(P5)
        return subprocess.run(["sh", "-c", script], env=environment, text=True, capture_output=True, check=True).stdout

    assert PRIVATE_FOLDERS not in print_disks()
    (tmp_path / "df").write_text((tmp_path / "df").read_text().replace("51000000", "430960"))
    assert print_disks().endswith(f"90000000\t{PRIVATE_FOLDERS}\n")


def test_only_missing_mounts_are_problems() -> None:
    expected = Expected(mounts=("/", "/nowhere-at-all"))
    answer = run_scripts([(filesystem.MOUNTS.command(expected), 20.0)])[0]
    assert filesystem.judge_mounts(answer.output, expected) == ["/nowhere-at-all is not mounted"]


# A FUSE filesystem whose server never answers: the kernel lets programs wait, as on a hard NFS mount.
HANGING_MOUNT = """
import ctypes, os, sys
from dataclasses import replace
from slurm.health.check import Expected, judge_answer
from slurm.health.filesystem import MOUNTS
from slurm.health.registry import run_scripts
folder, expected = sys.argv[1], Expected(mounts=("/", sys.argv[1]))
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
if ctypes.CDLL(None).mount(b"files:/export", folder.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit("the mount failed")
check = replace(MOUNTS, limit_s=10.0)
print(*judge_answer(check, run_scripts([(check.command(expected), check.limit_s)])[0], expected), sep="\\n")
"""


@pytest.mark.fault(8, place="real processes")
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root, and a kernel with FUSE")
def test_a_mount_that_hangs_is_named_with_its_server(tmp_path: Path) -> None:
    # The mount disappears with the namespace.
    command = ["unshare", "--mount", sys.executable, "-c", HANGING_MOUNT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"mounts: no answer within 10 s, {tmp_path} from files:/export (fuse)\n"


@pytest.mark.fault(35)
def test_a_timeout_and_a_failed_command_are_problems() -> None:
    def problem(script: str, limit_s: float) -> list[HealthProblem]:
        check = Check(
            "probe",
            about="a test",
            applies=lambda _: True,
            command=lambda _: script,
            judge=lambda _output, _expected: [],
            contexts=("periodic",),
            limit_s=limit_s,
            blame="node",
            remedies=("rounds",),
        )
        return judge_answer(check, run_scripts([(script, check.limit_s)])[0], P5)

    began = time.monotonic()
    assert problem("sleep 600", 0.2) == [HealthProblem("probe", "no answer within 0.2 s")]
    assert time.monotonic() - began < 60
    # A check says what it waits for.
    assert problem("echo /shared from files:/export >&2; sleep 600", 3.0) == [
        HealthProblem("probe", "no answer within 3 s, /shared from files:/export")
    ]
    assert problem("echo broken >&2; exit 9", 60) == [HealthProblem("probe", "exit code 9, broken")]
    assert problem("true", 60) == []


def test_checks_run_concurrently(tmp_path: Path) -> None:
    """Each one waits until all have started, so that one after the other would reach the limit."""
    script = f'touch {tmp_path}/$$; until [ "$(ls {tmp_path} | wc -l)" = 20 ]; do sleep 0.2; done'
    assert [answer.code for answer in run_scripts([(script, 60.0)] * 20)] == [0] * 20


def test_every_check_can_be_disabled() -> None:
    expected = Expected(gpus=8, nvlinks=18, efa=32, mounts=("/nowhere",))
    assert {problem.check for problem in find_problems(expected, "periodic")} >= {"gpu", "mounts"}
    off = Expected(**{**vars(expected), "disabled": [check.name for check in CHECKS]})
    assert find_problems(off, "periodic") == []


BAD = [HealthProblem("gpu", "7 of 8 GPUs answer")]
FULL_BY_USER = [HealthProblem("job-disk", "/ has 1 MB free of 9", "user")]
REASON = PREFIX + "gpu: 7 of 8 GPUs answer"


@pytest.mark.parametrize(
    ("problems", "service", "rounds", "decision"),
    [
        (BAD, Service(False), 0, Decision("drain", REASON, 0)),
        (BAD, Service(True, "maintenance by alice"), 0, Decision(None)),
        (BAD, Service(True, REASON), 2, Decision(None, REASON, 0)),
        (BAD, Service(True, PREFIX + "xid: other"), 0, Decision("drain", REASON, 0)),
        (BAD, Service(True, "Prolog error"), 0, Decision("drain", REASON, 0)),
        (BAD, Service(True, ""), 0, Decision("drain", REASON, 0)),
        ([], Service(True, ""), 0, Decision(None, good_rounds=1)),
        ([], Service(False), 0, Decision(None)),
        ([], Service(True, "maintenance by alice"), 9, Decision(None)),
        ([], Service(True, REASON), 0, Decision(None, good_rounds=1)),
        ([], Service(True, REASON), GOOD_ROUNDS - 1, Decision("resume")),
        ([], Service(True, "Prolog error"), 0, Decision(None, good_rounds=1)),
        ([], Service(True, "Prolog error"), GOOD_ROUNDS - 1, Decision("resume")),
        ([], Service(True, "Prolog/Epilog failure"), GOOD_ROUNDS - 1, Decision("resume")),
        ([], Service(True, FABRIC_PREFIX + "slow"), GOOD_ROUNDS - 1, Decision(None)),
        (BAD, Service(True, FABRIC_PREFIX + "slow"), 0, Decision(None)),
        (FULL_BY_USER, Service(False), 0, Decision(None)),
        ([*FULL_BY_USER, *BAD], Service(False), 0, Decision("drain", REASON, 0)),
        (FULL_BY_USER, Service(True, REASON), GOOD_ROUNDS - 1, Decision("resume")),
    ],
)
def test_decision(problems: list[HealthProblem], service: Service, rounds: int, decision: Decision) -> None:
    assert decide(problems, service, rounds) == decision


@pytest.fixture
def stubbed(tmp_path: Path) -> StubbedNode:
    return StubbedNode.create(tmp_path)


OTHER_DRIVER = {"driver": {"version": "1.0", "file": "/nowhere"}}
OTHER_DRIVER_REASON = "health: software: driver is no longer 1.0: /nowhere shows nothing"


def test_the_program_drains_and_resumes_its_node(stubbed: StubbedNode) -> None:
    assert stubbed.run("interval", mounts=["/nowhere"]).returncode == 0
    assert stubbed.state == "gpu-1|drained|health: mounts: /nowhere is not mounted"
    for _ in range(GOOD_ROUNDS):
        assert "drained" in stubbed.state
        assert stubbed.run("interval", mounts=["/"]).returncode == 0
    assert stubbed.state == "gpu-1|idle|none"
    assert not stubbed.rounds.exists()


def test_a_reason_that_slurmctld_dropped_is_set_again(stubbed: StubbedNode) -> None:
    """slurmd runs the checks before it registers; slurmctld drops the reason of a node that it had as powered down."""
    for _ in range(2):
        stubbed.run("interval", mounts=["/nowhere"])
        assert stubbed.state == "gpu-1|drained|health: mounts: /nowhere is not mounted"
        stubbed.set_state("gpu-1|drained|none")
    for _ in range(GOOD_ROUNDS):
        stubbed.run("interval", mounts=["/"])
    assert stubbed.state == "gpu-1|idle|none"


def test_the_checks_do_not_end_a_drain_of_a_person_whose_reason_was_dropped(stubbed: StubbedNode) -> None:
    stubbed.set_state("gpu-1|drained|maintenance by alice")
    stubbed.run("interval", mounts=["/nowhere"])
    stubbed.set_state("gpu-1|drained|none")
    for _ in range(GOOD_ROUNDS):
        stubbed.run("interval", mounts=["/"])
    assert stubbed.state == "gpu-1|drained|none"


def test_the_prolog_drains_a_broken_node_with_the_cause_and_rounds_resume_it(stubbed: StubbedNode) -> None:
    assert stubbed.run("prolog").returncode == 0
    failed = stubbed.run("prolog", software=OTHER_DRIVER)
    assert (failed.returncode, failed.stderr) == (1, f"{OTHER_DRIVER_REASON}\n")
    assert stubbed.state == f"gpu-1|drained|{OTHER_DRIVER_REASON}"
    for _ in range(GOOD_ROUNDS):
        assert "drained" in stubbed.state
        stubbed.run("interval")
    assert stubbed.state == "gpu-1|idle|none"


def test_a_node_that_slurm_drained_for_a_failed_prolog_is_resumed(stubbed: StubbedNode) -> None:
    """The prolog could not set its own reason, so Slurm sets its reason, which names no cause."""
    stubbed.write_tool("scontrol", "exit 1")
    failed = stubbed.run("prolog", software=OTHER_DRIVER)
    assert failed.returncode == 1
    assert "health: the reason was not set: " in failed.stderr
    stubbed.set_state("gpu-1|drained|Prolog error")
    stubbed.write_tool("scontrol", f'printf "%s %s" "$2" "$3" >{stubbed.folder / "changes"}')
    for _ in range(GOOD_ROUNDS):
        stubbed.run("interval")
    assert (stubbed.folder / "changes").read_text() == "nodename=gpu-1 state=resume"


def test_the_prolog_of_a_node_that_slurmctld_does_not_know_fails_with_the_cause(stubbed: StubbedNode) -> None:
    stubbed.set_state("")
    failed = stubbed.run("prolog", software=OTHER_DRIVER)
    assert (failed.returncode, failed.stderr.splitlines()) == (
        1,
        [OTHER_DRIVER_REASON, "health: the reason was not set: slurmctld does not know the node gpu-1"],
    )


def test_the_prolog_leaves_a_drain_set_by_a_person(stubbed: StubbedNode) -> None:
    stubbed.set_state("gpu-1|draining|maintenance by alice")
    assert stubbed.run("prolog", software=OTHER_DRIVER).returncode == 1
    assert stubbed.state == "gpu-1|draining|maintenance by alice"


def test_a_slow_filesystem_does_not_fail_the_prolog(stubbed: StubbedNode) -> None:
    """Otherwise a requeued job would drain one node after the other."""
    assert stubbed.run("prolog", mounts=["/nowhere"]).returncode == 0
