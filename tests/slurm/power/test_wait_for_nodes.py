"""The program that slurmctld runs before each job: when it waits for the job's nodes, and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm.power import install
from tests.harness import REPO, wait_until

LIMIT_S = 600
# Two checks, on a busy machine.
SOON_S = 120.0
SINFO = '#!/bin/sh\necho asked >>"$0.calls"\ncat "$0.states"\n'
# It is asked, but does not answer.
SILENT_SINFO = '#!/bin/sh\necho asked >>"$0.calls"\nexec sleep 1000\n'
PROGRAM = "slurm/control/wait_for_nodes.sh"
# Times of the program, and those that tests use instead: a busy machine may need longer for the first answer.
PATIENT = {"FIRST_ANSWER_S=5": "FIRST_ANSWER_S=60"}
QUICK = {**PATIENT, "MAX_AGE_US=1000000": "MAX_AGE_US=100000", "PAUSE_S=1.": "PAUSE_S=0.1"}
SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames gpu-[1-2]" ] && printf "gpu-1\\ngpu-2\\n"\n'


@dataclass
class Controller:
    """A controller whose sinfo prints the states of nodes that a test sets."""

    folder: Path
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def set_states(self, states: Mapping[str, str]) -> None:
        lines = "".join(f"{state} {name}\n" for name, state in states.items())
        new = self.folder / "states.new"
        new.write_text(lines)
        new.replace(self.folder / "sinfo.states")

    def start(
        self, nodes: str, limit_s: int = LIMIT_S, folder: Path | None = None, root: Path | None = None
    ) -> subprocess.Popen[bytes]:
        scripts = install.write_scripts("python", str(root or self.folder / "quick"), "launcher", limit_s)
        script = scripts[install.WAIT_FOR_NODES].replace(install.STATE, str(folder or self.folder))
        env = {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": nodes}
        program = subprocess.Popen(["sh", "-c", script.partition("\n")[2]], env=env, start_new_session=True)
        self.programs.append(program)
        return program

    def count_calls(self) -> int:
        calls = self.folder / "sinfo.calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def wait_for_call(self) -> None:
        before = self.count_calls()
        wait_until(lambda: self.count_calls() > before, "slurmctld is asked again", SOON_S)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    for name, text in {"sinfo": SINFO, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name, times in {"quick": QUICK, "patient": PATIENT}.items():
        _copy_with_other_times(tmp_path / name / PROGRAM, times)
    running = Controller(tmp_path)
    yield running
    for program in running.programs:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("allocated", "mixed", False),
        ("allocated#", "allocated", True),
        ("mixed", "mixed#", True),
        ("allocated~", "allocated", True),
        ("draining#", "allocated", True),
        # The job was requeued, and its nodes are free or failed.
        ("idle#", "idle#", False),
        ("idle~", "idle", False),
        ("down#", "idle#", False),
        ("down*", "drained#", False),
        # Slurm's own check deals with other states.
        ("allocated*", "allocated%", False),
    ],
)
def test_it_waits_for_nodes_that_hold_a_job_and_have_not_started(
    controller: Controller, first: str, second: str, waits: bool
) -> None:
    controller.set_states({"gpu-1": first, "gpu-2": second, "gpu-3": "allocated#"})
    program = controller.start("gpu-[1-2]")
    if waits:
        controller.wait_for_call()
        controller.wait_for_call()
        assert program.poll() is None
    else:
        assert program.wait(SOON_S) == 0


def test_it_ends_when_the_last_node_has_started(controller: Controller) -> None:
    controller.set_states({"gpu-1": "mixed#", "gpu-2": "mixed#"})
    program = controller.start("gpu-[1-2]")
    controller.wait_for_call()
    controller.set_states({"gpu-1": "mixed", "gpu-2": "mixed#"})
    controller.wait_for_call()
    controller.wait_for_call()
    assert program.poll() is None
    controller.set_states({"gpu-1": "mixed", "gpu-2": "mixed"})
    assert program.wait(SOON_S) == 0


def test_a_list_from_before_the_allocation_is_ignored(controller: Controller) -> None:
    (controller.folder / "starting-nodes").write_text(f"{time.time_ns() // 1000} 1 \n")
    controller.set_states({"gpu-1": "allocated#"})
    program = controller.start("gpu-1")
    controller.wait_for_call()
    controller.wait_for_call()
    assert program.poll() is None


@pytest.mark.nightly
def test_programs_that_wait_together_ask_slurmctld_once_a_second(controller: Controller) -> None:
    controller.set_states({"gpu-1": "allocated#"})
    for _ in range(20):
        controller.start("gpu-1", root=controller.folder / "patient")
    controller.wait_for_call()
    began, before = time.monotonic(), controller.count_calls()
    while controller.count_calls() < before + 3:
        time.sleep(0.1)
    # Programs that have just started need an answer of their own, but share it, too.
    assert controller.count_calls() - before <= time.monotonic() - began + 20
    began, before = time.monotonic(), controller.count_calls()
    while time.monotonic() - began < 4 or controller.count_calls() == before:
        time.sleep(0.1)
    assert 1 <= controller.count_calls() - before <= time.monotonic() - began + 1


def test_it_never_waits_longer_than_its_limit(controller: Controller) -> None:
    controller.set_states({"gpu-1": "allocated#"})
    assert controller.start("gpu-1", limit_s=1).wait(SOON_S) == 0


@pytest.mark.nightly
def test_it_gives_up_soon_if_slurmctld_never_answers(controller: Controller) -> None:
    """The nodes may all be up, so that the job would wait for nothing."""
    (controller.folder / "sinfo").write_text(SILENT_SINFO)
    assert controller.start("gpu-1", root=REPO).wait(SOON_S) == 0
    assert controller.count_calls() >= 1


def test_it_waits_on_if_slurmctld_stops_answering(controller: Controller) -> None:
    controller.set_states({"gpu-1": "allocated#"})
    program = controller.start("gpu-1")
    controller.wait_for_call()
    (controller.folder / "sinfo.states").unlink()
    controller.wait_for_call()
    time.sleep(2)
    assert program.poll() is None
    controller.set_states({"gpu-1": "allocated"})
    assert program.wait(SOON_S) == 0


@pytest.mark.parametrize("limit_s", [0, 1])
def test_it_succeeds_without_an_answer(controller: Controller, limit_s: int) -> None:
    assert controller.start("gpu-1", limit_s).wait(SOON_S) == 0
    assert controller.start("gpu-1", limit_s, folder=controller.folder / "missing").wait(SOON_S) == 0
    assert controller.start("", LIMIT_S).wait(SOON_S) == 0


def test_it_succeeds_without_its_code(controller: Controller) -> None:
    assert controller.start("gpu-1", root=controller.folder).wait(SOON_S) == 0


def test_further_jobs_are_left_to_slurm_if_too_many_wait(controller: Controller) -> None:
    (controller.folder / "pgrep").write_text("#!/bin/sh\necho 1001\n")
    (controller.folder / "pgrep").chmod(0o755)
    controller.set_states({"gpu-1": "allocated#"})
    assert controller.start("gpu-1").wait(SOON_S) == 0


@pytest.mark.parametrize(
    ("extra", "limit_s"),
    [
        ({}, 1800),
        ({"PrologEpilogTimeout": "65534"}, 1800),
        ({"prologepilogtimeout": "60"}, 55),
        ({"PrologTimeout": "3"}, 0),
    ],
)
def test_it_ends_before_slurmctld_would_kill_it_and_requeue_the_job(extra: dict[str, str], limit_s: int) -> None:
    assert install.limit_wait(1800, extra) == limit_s


def _copy_with_other_times(path: Path, times: Mapping[str, str]) -> None:
    text = (REPO / PROGRAM).read_text()
    for real, other in times.items():
        assert text.count(f"\n{real}\n") == 1
        text = text.replace(f"\n{real}\n", f"\n{other}\n")
    path.parent.mkdir(parents=True)
    path.write_text(text)
