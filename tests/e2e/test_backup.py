"""A backup of a real cluster, and its restore after the cluster with all its storage was deleted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import Spec, Stack, small_spec, wait_until

# Three runs of `up` take longer than the other tests of this layer.
pytestmark = pytest.mark.nightly

# The archive is of the older release, so that both can restore it.
OLD, NEW = "24.11", "26.05"
USERS = {"alice": {"uid": 2001}, "bob": {"uid": 2002}}
QUEUE = "squeue -a -h -S i -o '%i %u %j %T %r'"
ACCOUNTS = "sacctmgr -nP list assoc format=account,user | sort"
RECORDS = "sacct -a -nXP -S now-1days -o jobid,jobname,user,state,end -s completed"
FILES = """cd /shared && find . -path ./env -prune -o -path ./.bundles -prune -o \
  ! -type d -printf '%p %U:%G %m %s %l ' ! -path ./muster -exec sha256sum {} \\; 2>&1 | sort"""


@pytest.fixture(scope="module")
def stack(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    groups = {"cpu": {"count": 1, "size": {"cpus": 1, "memory_mb": 1024}}}
    spec = small_spec(
        groups=groups, login={"enabled": False}, storage={"shared": {}}, users=USERS, software={"slurm": OLD}
    )
    stack = make_stack("backup", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    assert stack.exists() == []


@pytest.fixture(scope="module")
def before(stack: Stack) -> dict[str, str]:
    """Use the cluster, and return what must be the same after a restore."""
    stack.ssh("controller", "sacctmgr -i add account physics description=lab organization=lab", user="root")
    stack.ssh("controller", "sacctmgr -i add user alice account=physics", user="root")
    stack.ssh("controller", "cd ~ && sbatch --wait --account=physics --job-name=done --wrap hostname", user="alice")
    stack.ssh("controller", "cd ~ && sbatch --hold --job-name=waits --wrap 'cat note >result'", user="alice")
    stack.ssh("controller", "cd ~ && sbatch --job-name=runs --wrap 'sleep 600'", user="bob")
    stack.ssh("controller", "cd ~ && echo hello >note && chmod 600 note && ln -s note link", user="alice")
    stack.ssh("controller", "head -c 20000000 /dev/urandom >/shared/data && chown 2002:99 /shared/data", user="root")
    wait_until(lambda: "runs RUNNING" in stack.ssh("controller", QUEUE, user="root"), "the job runs")
    return look(stack)


@pytest.fixture(scope="module")
def archive(stack: Stack, before: dict[str, str]) -> Path:
    """Return the backup of the cluster."""
    assert before
    backup = stack.muster("backup").stdout
    assert "1 running, 0 waiting and 1 held jobs" in backup
    (path,) = (stack.home / "backups").glob("*.backup.tar")
    return path


def look(stack: Stack) -> dict[str, str]:
    """Return everything that must be as before."""
    scripts = {"accounts": ACCOUNTS, "records": RECORDS, "files": FILES}
    return {name: stack.ssh("controller", script, user="root") for name, script in scripts.items()}


def test_a_backup_disturbs_nobody(stack: Stack, archive: Path) -> None:
    assert "runs RUNNING" in stack.ssh("controller", QUEUE, user="root")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert archive.name in stack.muster("backup", "list").stdout


def test_a_restore_ends_no_running_job_and_overwrites_nothing_unasked(stack: Stack, archive: Path) -> None:
    refused = stack.muster("restore", str(archive), check=False)
    assert (refused.returncode, "jobs are running, which a restore would lose" in refused.stderr) == (1, True)
    stack.ssh("controller", "scancel --user=bob", user="root")
    wait_until(lambda: "runs" not in stack.ssh("controller", QUEUE, user="root"), "the job ended")
    refused = stack.muster("restore", archive.name, check=False)
    assert (refused.returncode, "the cluster is not empty, and nothing was changed" in refused.stderr) == (2, True)
    assert "jobs in the accounting and files in /shared, such as /shared/" in refused.stderr


def test_a_damaged_archive_changes_nothing(stack: Stack, archive: Path, tmp_path: Path) -> None:
    now = look(stack)
    damaged = tmp_path / archive.name
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    refused = stack.muster("restore", str(damaged), "--overwrite", check=False)
    assert (refused.returncode, "is damaged or incomplete: the SHA-256 of" in refused.stderr) == (
        2,
        True,
    )
    assert look(stack) == now


def test_a_full_disk_leaves_no_archive(stack: Stack, archive: Path) -> None:
    limited = ["prlimit", "--fsize=5000000", *stack.command("backup")]
    failed = subprocess.run(limited, env=stack.environment(), text=True, capture_output=True, timeout=120, check=False)
    assert (failed.returncode, "cannot be written: File too large" in failed.stderr) == (1, True)
    assert list(archive.parent.iterdir()) == [archive]
    assert "UP" in stack.ssh("controller", "scontrol ping")


def test_a_killed_backup_leaves_a_working_cluster_and_no_archive(stack: Stack, archive: Path) -> None:
    # Large enough to be killed in the middle.
    stack.ssh("controller", "head -c 300000000 /dev/urandom >/shared/large", user="root")
    started = stack.start("backup")
    partial = archive.parent.glob
    wait_until(lambda: any(f.stat().st_size > 10**6 for f in partial("*.partial")), "the archive grows")
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert list(archive.parent.glob("*.backup.tar")) == [archive]
    assert "UP" in stack.ssh("controller", "scontrol ping")
    stack.ssh("controller", "rm /shared/large", user="root")
    stack.muster("backup", "--no-files")
    second = next(file for file in archive.parent.iterdir() if file != archive)
    assert sorted(file.suffix for file in archive.parent.iterdir()) == [".tar", ".tar"]
    second.unlink()


def test_a_new_cluster_is_as_before(stack: Stack, archive: Path, before: dict[str, str]) -> None:
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    assert (stack.exists(), archive.exists()) == ([], True)
    # A user who came later must not be lost by the accounts of the archive.
    stack.spec["users"] = {**USERS, "carol": {"uid": 2003}}
    stack.up()
    report = stack.muster("restore", archive.name).stdout
    assert "restored" in report
    after = look(stack)
    assert after["records"] == before["records"]
    assert set(before["accounts"].splitlines()) | {"muster|carol"} == set(after["accounts"].splitlines())
    users_files = [line for line in after["files"].splitlines() if "/carol/" not in line]
    assert users_files == before["files"].splitlines()
    queue = stack.ssh("controller", QUEUE, user="root")
    assert "alice waits PENDING JobHeldUser" in queue
    # The machine of this job is gone. Slurm notices that and requeues it.
    wait_until(lambda: "bob runs PENDING" in stack.ssh("controller", QUEUE, user="root"), "the job is requeued")
    stack.ssh("controller", "scancel --user=bob", user="root")
    held = queue.split()[0]
    stack.ssh("controller", f"scontrol release {held}", user="root")
    home = "/shared/home/alice"
    wait_until(lambda: stack.ssh("controller", f"cat {home}/result", user="root", check=False) == "hello", "it ran")
    later = stack.ssh("controller", "cd ~ && sbatch --parsable --wait --wrap hostname", user="carol")
    assert int(later) > int(held)


def test_a_newer_slurm_restores_the_archive_of_an_older_one(
    stack: Stack, archive: Path, before: dict[str, str]
) -> None:
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    stack.spec["software"] = {"slurm": NEW}
    stack.up()
    stack.muster("restore", str(archive))
    assert look(stack)["records"] == before["records"]
    assert "alice waits PENDING JobHeldUser" in stack.ssh("controller", QUEUE, user="root")
    assert stack.ssh("controller", "cd ~ && cat note", user="alice") == "hello"


def test_the_newer_slurm_restores_its_own_archive(stack: Stack, before: dict[str, str]) -> None:
    stack.ssh("controller", "scancel --user=bob", user="root")
    wait_until(lambda: "runs" not in stack.ssh("controller", QUEUE, user="root"), "the job ended")
    stack.muster("backup", "--no-files", "--to", str(stack.home / "newer"))
    (archive,) = (stack.home / "newer").iterdir()
    stack.ssh("controller", "scancel --user=alice", user="root")
    stack.muster("restore", str(archive), "--overwrite", "--no-files")
    assert look(stack)["records"] == before["records"]
    assert "alice waits PENDING JobHeldUser" in stack.ssh("controller", QUEUE, user="root")
