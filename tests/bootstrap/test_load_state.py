"""The script that loads queue and accounting, with a database and daemons that are files: what a failure leaves."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from bootstrap import state_backup

# A database that is the last dump it was given. A dump with `bad` fails after the database was dropped.
PROGRAMS = {
    "mariadb": """case "$*" in *show*) cat db >/dev/null 2>&1 && echo slurm_acct_db; exit 0;; esac
cat >input; rm -f db; if grep -q bad input; then exit 1; fi; sed 1d input >db""",
    "mariadb-dump": "cat db",
    "systemctl": """echo "$*" >>calls; [ "$*" != "start ${BROKEN:-none}" ]""",
    "journalctl": "true",
}


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    """Return a folder with a queue and an accounting, and others to load."""
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "db").write_text("former accounting\n")
    for folder, text in (("state", "former"), ("new", "new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job_state").write_text(f"{text} queue")
        (tmp_path / folder / "node_state").write_text(f"{text} nodes")
    (tmp_path / "work").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "new", "-cf", tmp_path / "work" / "queue.tar", "."], check=True)
    write_dump(tmp_path, "new accounting")
    return tmp_path


def write_dump(controller: Path, text: str) -> None:
    (controller / "work" / "accounting.sql").write_text(f"{text}\n-- Dump completed\n")


def load(controller: Path, answers: str = "true", **variables: str) -> subprocess.CompletedProcess[str]:
    values = {
        "STEP": "load",
        "WORK": str(controller / "work"),
        "STATE": str(controller / "state"),
        "WAIT_S": "1",
        "PROBE_S": "1",
        "DATABASE_ANSWERS": "true",
        "CONTROLLER_ANSWERS": answers,
        "PATH": f"{controller / 'bin'}:/usr/bin:/bin",
        **variables,
    }
    return subprocess.run(
        ["sh", "-c", state_backup.SCRIPT], env=values, capture_output=True, text=True, check=False, timeout=300
    )


def read(controller: Path) -> tuple[str, str, str]:
    state = controller / "state"
    accounting = (controller / "db").read_text().splitlines()[0]
    return accounting, (state / "job_state").read_text(), (state / "node_state").read_text()


def last_call(controller: Path) -> str:
    return (controller / "calls").read_text().splitlines()[-1]


def test_queue_and_accounting_are_replaced_and_nodes_stay(controller: Path) -> None:
    (controller / "state" / "old").touch()
    assert load(controller).returncode == 0
    assert read(controller) == ("new accounting", "new queue", "former nodes")
    assert not (controller / "state" / "old").exists()
    assert [path.name for path in controller.glob("work*")] == []


def test_accounting_that_was_never_used_is_replaced(controller: Path) -> None:
    (controller / "db").unlink()
    assert load(controller).returncode == 0
    assert read(controller) == ("new accounting", "new queue", "former nodes")


def test_failed_database_leaves_the_former_state(controller: Path) -> None:
    write_dump(controller, "bad")
    done = load(controller)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "the former queue and accounting are back"
    assert read(controller) == ("former accounting", "former queue", "former nodes")
    assert last_call(controller) == "start slurmdbd slurmctld"
    assert [path.name for path in controller.glob("work*")] == ["work"]


@pytest.mark.parametrize("daemon", ["slurmdbd", "slurmctld"])
def test_daemon_that_refuses_the_new_state_gets_the_former(controller: Path, daemon: str) -> None:
    done = load(controller, BROKEN=daemon)
    assert done.returncode != 0
    assert f"{daemon} did not start" in done.stderr
    assert read(controller) == ("former accounting", "former queue", "former nodes")
    assert last_call(controller) == "start slurmdbd slurmctld"


def test_former_state_that_cannot_be_put_back_stays_in_a_folder(controller: Path) -> None:
    (controller / "db").write_text("bad, but it was there\n")
    done = load(controller, BROKEN="slurmctld")
    assert done.returncode != 0
    former = controller / "work.former"
    assert done.stderr.splitlines()[-1] == f"the former queue and accounting are in {former} on the controller"
    assert former.stat().st_mode & 0o777 == 0o700
    assert (former / "accounting.sql").read_text() == "bad, but it was there\n"


def test_failed_copy_of_the_former_state_changes_nothing(controller: Path) -> None:
    (controller / "bin" / "mariadb-dump").write_text("#!/bin/sh\nexit 1\n")
    assert load(controller).returncode != 0
    assert read(controller) == ("former accounting", "former queue", "former nodes")
    assert last_call(controller) == "start slurmdbd slurmctld"


def test_daemon_that_never_answers_is_given_up_at_the_deadline(controller: Path) -> None:
    began = time.monotonic()
    done = load(controller, "sleep 500")
    assert "slurmctld does not answer after 1 s" in done.stderr
    assert time.monotonic() - began < 240
    assert read(controller) == ("former accounting", "former queue", "former nodes")
