"""What hangs of a step that Slurm could not kill is named, and is no problem any more once it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm.health import unkillable
from slurm.health.check import Expected
from tests.slurm.proc_tree import add_process, read_stat, start_without_main_thread

STEP = "/system.slice/slurmstepd.scope/job_12/step_0"
MOUNTS = """\
22 1 0:5 / / rw - overlay overlay rw
30 22 0:40 / /shared rw,relatime shared:1 - nfs4 10.0.0.2:/export rw
31 22 0:41 / /shared/scratch rw - ext4 /dev/sdb rw
"""


@pytest.mark.fault(36)
def test_a_process_that_hangs_is_named_with_its_job_and_mount(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "unkillable"
    hung = add_process(proc, 11, group=f"{STEP}/user/task_0", state="D", started=7)
    (hung / "wchan").write_text("rpc_wait_bit_killable")
    (hung / "cwd").symlink_to("/shared/data")
    (hung / "mountinfo").write_text(MOUNTS)
    add_process(proc, 12, group=f"{STEP}/user/task_0", state="Z")
    add_process(proc, 13, group="/system.slice/slurmstepd.scope/job_13/step_0/user/task_0")
    text = "job 12: python (pid 11, state D, in rpc_wait_bit_killable, on /shared (nfs4 10.0.0.2:/export))"
    assert unkillable.note_unkillable("12", folder, proc) == [f"11 7 {text}"]
    assert (folder / "12").read_text() == f"11 7 {text}\n"
    assert unkillable.note_unkillable("14", folder, proc) == []
    assert not (folder / "14").exists()


@pytest.mark.fault(36)
def test_a_process_that_a_kill_waits_for_in_two_rounds_is_recorded(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "run" / "unkillable"
    add_process(proc, 11, group=STEP, state="D", pending=0x100)
    add_process(proc, 12, group=STEP, pending=0x4000)
    unkillable.note_killed(folder, proc)
    assert not folder.exists()
    add_process(proc, 13, group=STEP, pending=0x100)
    unkillable.note_killed(folder, proc)
    assert (folder / "12").read_text().startswith("11 100 job 12: python (pid 11, state D")
    assert len((folder / "12").read_text().splitlines()) == 1


@pytest.mark.fault(36)
def test_a_thread_that_hangs_after_its_process_was_killed_is_named(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "run" / "unkillable"
    killed = add_process(proc, 11, group=STEP, state="Z", threads=2)
    hung = add_process(killed / "task", 13, group=STEP, state="D", pending=0x100)
    (hung / "wchan").write_text("rpc_wait_bit_killable")
    (hung / "cwd").symlink_to("/shared/data")
    (hung / "mountinfo").write_text(MOUNTS)
    for _ in range(2):
        unkillable.note_killed(folder, proc)
    where = "in rpc_wait_bit_killable, on /shared (nfs4 10.0.0.2:/export)"
    assert (folder / "12").read_text() == f"11 100 job 12: python (pid 11, thread 13, state D, {where})\n"


@pytest.mark.fault(36)
def test_the_check_reports_a_process_as_long_as_one_of_its_threads_lives(tmp_path: Path) -> None:
    with start_without_main_thread() as process:
        record = tmp_path / "12"
        record.write_text(f"{process.pid} {read_stat(process.pid)[19]} job 12: python (state D)\n")
        assert report(tmp_path) == ["job 12: python (state D)"]
    assert report(tmp_path) == []
    assert not record.exists()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/shared/data", "/shared (nfs4 10.0.0.2:/export)"),
        ("/shared/scratch/a", "/shared/scratch"),
        ("/sharedness", "/"),
        ("/", "/"),
    ],
)
def test_mount_of_a_path(path: str, shown: str) -> None:
    assert unkillable.find_mount(path, MOUNTS) == shown


@pytest.mark.fault(36)
def test_the_check_reports_recorded_processes_until_they_are_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    record = tmp_path / "12"
    try:
        started = read_stat(process.pid)[19]
        record.write_text(f"{process.pid} {started} job 12: sleep (state D)\n{process.pid} 1 another of the same id\n")
        assert report(tmp_path) == ["job 12: sleep (state D)"]
    finally:
        process.kill()
        process.wait()
    assert report(tmp_path) == []
    assert not record.exists()


def test_a_user_who_chooses_names_can_forge_neither_a_record_nor_a_reason(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "unkillable"
    hung = add_process(proc, 11, name="a\n/etc 7 b; gpu: x", group=STEP, state="D")
    (hung / "cwd").symlink_to("/m\\012nt/data")
    (hung / "mountinfo").write_text("30 22 0:40 / /m\\012nt rw - fuse.tool $(reboot);x\x85y rw\n")
    text = "job 12: a?/etc?7?b??gpu:?x (pid 11, state D, on /m?012nt (fuse.tool ??reboot??x))"
    assert unkillable.note_unkillable("12", folder, proc) == [f"11 100 {text}"]
    # Even of a record that was forged, only processes are looked up.
    (folder / "12").write_text(f"../../{tmp_path.relative_to('/')}/outside 7 forged\n 1 2 3\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "stat").write_text(f"1 (a) S {'0 ' * 16}1 0 7 0\n")
    assert report(folder) == []


def test_many_processes_are_counted() -> None:
    assert unkillable.summarize(["a", "b", "c", "d", "e"]) == ["a", "b", "c", "and 2 more"]
    assert unkillable.summarize(["a"]) == ["a"]


def report(folder: Path) -> list[str]:
    script = unkillable.CHECK.command(Expected()).replace(unkillable.RECORDS, str(folder))
    done = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
    return unkillable.CHECK.judge(done.stdout, Expected())
