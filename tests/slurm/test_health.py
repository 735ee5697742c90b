"""Health checks: how real tool output is judged, that no answer is a problem, and who may drain and resume a node."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm.health import clock, efa, filesystem, gpu, nvlink, software, xid
from slurm.health.check import Check, Expected, HealthProblem, judge_answer
from slurm.health.drain import FABRIC_PREFIX, GOOD_ROUNDS, PREFIX, Decision, Service, decide
from slurm.health.registry import CHECKS, find_problems, run_scripts

P5 = Expected(gpus=2, nvlinks=3, efa=2, mounts=("/shared",))
HEALTHY = "0, 0, 0, 0, 0x0000000000000004\n1, 0, 0, 0, 0x0000000000000001\n"
LINKS = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
    "\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: 26.562 GB/s\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"
    "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 26.562 GB/s\n"
)
TRACKING = "Reference ID    : A9FEA97B (169.254.169.123)\nSystem time     : {} seconds {} of NTP time\n"
DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/root 101430960 {} {} 99% /\n"


@pytest.mark.parametrize(
    ("output", "problems"),
    [
        (HEALTHY, []),
        ("0, 0, 0, 0, 0x0\n", ["1 of 2 GPUs answer"]),
        ("0, 3, 0, 0, 0x0\n1, 0, 0, 0, 0x0\n", ["GPU 0 has 3 uncorrectable memory errors"]),
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
        (answer,) = run_scripts([software.CHECK.command(expected)], 10.0)
        return [str(problem) for problem in judge_answer(software.CHECK, answer, expected)]

    assert check_software(driver=("595.91.07", driver), efa=("3.3.0", module), libfabric=("2.6.0", "")) == []
    assert check_software(libfabric=("2.6.0", "")) == []
    assert check_software(driver=("595.91", driver), efa=("3.3", module), gdrcopy=("2.5.2", gone)) == [
        f"software: driver is no longer 595.91: {driver} shows 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
        "  595.91.07  Release Build'",
        f"software: efa is no longer 3.3: {module} shows '3.3.0g'",
        f"software: gdrcopy is no longer 2.5.2: {gone} shows nothing",
    ]


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


def test_free_disk_space() -> None:
    assert filesystem.judge_disk(DF.format(50_000_000, 51_000_000), P5) == []
    assert filesystem.judge_disk(DF.format(101_000_000, 430_960), P5) == ["/ has 420 MB free of 99053"]


def test_only_missing_mounts_are_problems() -> None:
    expected = Expected(mounts=("/", "/nowhere-at-all"))
    answer = run_scripts([filesystem.MOUNTS.command(expected)], 20)[0]
    assert filesystem.judge_mounts(answer.output, expected) == ["/nowhere-at-all is not mounted"]


def test_a_timeout_and_a_failed_command_are_problems() -> None:
    def problem(script: str, limit_s: float) -> list[HealthProblem]:
        check = Check("probe", lambda _: True, lambda _: script, lambda _output, _expected: [])
        return judge_answer(check, run_scripts([script], limit_s)[0], P5)

    began = time.monotonic()
    assert problem("sleep 600", 0.2) == [HealthProblem("probe", "no answer within 0.2 s")]
    assert time.monotonic() - began < 60
    assert problem("echo broken >&2; exit 9", 60) == [HealthProblem("probe", "exit code 9, broken")]
    assert problem("true", 60) == []


def test_checks_run_concurrently() -> None:
    began = time.monotonic()
    assert [answer.code for answer in run_scripts(["sleep 1"] * 20, 60)] == [0] * 20
    assert time.monotonic() - began < 15


def test_every_check_can_be_disabled() -> None:
    expected = Expected(gpus=8, nvlinks=18, efa=32, mounts=("/nowhere",))
    assert {problem.check for problem in find_problems(expected, before_job=False, limit_s=20)} >= {"gpu", "mounts"}
    off = Expected(**{**vars(expected), "disabled": [check.name for check in CHECKS]})
    assert find_problems(off, before_job=False, limit_s=20) == []


BAD = [HealthProblem("gpu", "7 of 8 GPUs answer")]
REASON = PREFIX + "gpu: 7 of 8 GPUs answer"


@pytest.mark.parametrize(
    ("problems", "service", "rounds", "decision"),
    [
        (BAD, Service(False), 0, Decision("drain", REASON)),
        (BAD, Service(True, "maintenance by alice"), 0, Decision(None, REASON)),
        (BAD, Service(True, REASON), 2, Decision(None, REASON)),
        (BAD, Service(True, PREFIX + "xid: other"), 0, Decision("drain", REASON)),
        ([], Service(False), 0, Decision(None)),
        ([], Service(True, "maintenance by alice"), 9, Decision(None)),
        ([], Service(True, REASON), 0, Decision(None, good_rounds=1)),
        ([], Service(True, REASON), GOOD_ROUNDS - 1, Decision("resume")),
        ([], Service(True, FABRIC_PREFIX + "slow"), GOOD_ROUNDS - 1, Decision(None)),
        (BAD, Service(True, FABRIC_PREFIX + "slow"), 0, Decision(None, REASON)),
    ],
)
def test_decision(problems: list[HealthProblem], service: Service, rounds: int, decision: Decision) -> None:
    assert decide(problems, service, rounds) == decision


def test_the_program_drains_and_resumes_its_node(tmp_path: Path) -> None:
    """Run the real program in its own process, with stubs of scontrol and sinfo that keep the node's state."""
    tools, state = tmp_path / "bin", tmp_path / "node"
    tools.mkdir()
    state.write_text("gpu-1|idle|none")
    (tools / "sinfo").write_text(f"#!/bin/sh\ncat {state}\n")
    (tools / "scontrol").write_text(
        f'#!/bin/sh\ncase "$3" in state=drain) printf "gpu-1|drained|%s" "${{4#reason=}}" >{state};; '
        f'state=resume) printf "gpu-1|idle|none" >{state};; esac\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    expected = tmp_path / "health.json"
    program = (
        "import sys; from pathlib import Path; from slurm.health import __main__ as health; "
        f"health.EXPECTED = Path({str(expected)!r}); health.ROUNDS = Path({str(tmp_path / 'rounds')!r}); "
        "sys.exit(health.main(sys.argv[1:]))"
    )

    def run(kind: str, mounts: list[str]) -> subprocess.CompletedProcess[str]:
        expected.write_text(json.dumps({"mounts": mounts, "disabled": ["disk", "clock"]}))
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURMD_NODENAME": "gpu-1"}
        return subprocess.run(
            [sys.executable, "-c", program, kind], env=environment, capture_output=True, text=True, cwd=Path.cwd()
        )

    failed = run("prolog", ["/nowhere"])
    assert (failed.returncode, failed.stderr) == (1, "health: mounts: /nowhere is not mounted\n")
    assert run("interval", ["/nowhere"]).returncode == 0
    assert state.read_text() == "gpu-1|drained|health: mounts: /nowhere is not mounted"
    for _ in range(GOOD_ROUNDS):
        assert "drained" in state.read_text()
        assert run("interval", ["/"]).returncode == 0
    assert state.read_text() == "gpu-1|idle|none"
    assert not (tmp_path / "rounds").exists()
    assert run("prolog", ["/"]).returncode == 0
