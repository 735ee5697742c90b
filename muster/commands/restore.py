"""`muster restore`: give a cluster the queue, accounting and shared files of an archive."""

from __future__ import annotations

import time
from pathlib import Path

from bootstrap import state_backup
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra import archive
from infra.archive import ArchiveError, Manifest
from infra.controller_shell import ControllerShell, ScriptError
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import StackHome
from muster.commands import screen
from muster.commands.backup import Progress, read_running_spec
from muster.commands.bootstrap import bootstrap
from muster.commands.upgrade import RELEASES
from slurm.control.named_jobs import LIST_RUNNING, parse_running
from slurm.control.snapshot import COUNT_JOBS, TAKE, Snapshot, parse_snapshot
from slurm.restore_check import find_losses
from slurm.upgrade_check import describe_snapshot


def restore(name: str, source: str, *, overwrite: bool = False, files: bool = True) -> None:
    """Restore an archive to a running cluster; nothing changes before the archive and the cluster are checked."""
    stack, spec = read_running_spec(name)
    path, controller, began = _find(stack, source), ControllerShell(stack), time.monotonic()
    with lock.held(stack, "restore", wait=False, say=screen.say):
        pulumi.wait_for_others(stack, wait=False, say=screen.say)
        try:
            with screen.status("checking the archive") as line:
                manifest = archive.verify_archive(path, Progress(line, "checked"))
            storage = dict(manifest.storage) if files else {}
            if problem := find_mismatch(manifest, storage, spec):
                raise Stop(problem, "`.venv/bin/muster backup list` shows the archives of each stack", BAD_INPUT)
            require_idle(controller, name, "nothing was changed")
            _require_space(controller, spec, storage)
            if not overwrite:
                _require_empty(controller, spec, storage)
            losses, after = carry_out(controller, path, manifest, spec, storage)
        except ArchiveError as problem:
            raise Stop(problem.what, problem.fix, BAD_INPUT) from None
        except (ScriptError, ValueError) as problem:
            raise Stop(f"the restore failed: controller: {problem}", _again(name, path), FAILED) from None
    # The stack file may have users and settings that the archive does not have.
    bootstrap(name)
    if losses:
        raise Stop("\n".join(["something is missing after the restore:", *losses]), _again(name, path), FAILED)
    contents = ", ".join([describe_snapshot(after), *(f"storage {entry}" for entry in storage)])
    screen.print_success(f"restored {path.name}: {contents} in {time.monotonic() - began:.0f} s")


def find_mismatch(manifest: Manifest, storage: dict[str, int], spec: ClusterSpec) -> str:
    """Return why an archive does not fit a cluster; empty if it does. A newer Slurm reads what an older one wrote."""
    if manifest.cluster != spec.name:
        return f"the archive is of cluster {manifest.cluster}, this cluster is {spec.name}"
    allowed = RELEASES[: RELEASES.index(spec.software.slurm) + 1]
    if manifest.slurm not in allowed:
        return f"the archive is of Slurm {manifest.slurm}, this cluster has {spec.software.slurm}, which reads: " + (
            ", ".join(allowed)
        )
    if unknown := sorted(set(storage) - set(spec.storage)):
        present = ", ".join(sorted(spec.storage))
        return f"the archive has files of storage {', '.join(unknown)}, this cluster has only {present}"
    return ""


def require_idle(controller: ControllerShell, name: str, changes: str) -> None:
    """Raise Stop if jobs are running; `changes` says what the restore has changed by then."""
    jobs = parse_running(controller.run(LIST_RUNNING))
    if jobs.listed:
        running = " ".join(job.id for job in jobs.listed)
        more = f" and {jobs.more} more" if jobs.more else ""
        what = f"jobs are running, which a restore would lose: {running}{more}; {changes}"
        cancel = format_command("ssh", name, then="scancel --state=running" if more else f"scancel {running}")
        raise Stop(what, f"wait for them, or `{cancel}`")


def carry_out(
    controller: ControllerShell, path: Path, manifest: Manifest, spec: ClusterSpec, storage: dict[str, int]
) -> tuple[list[str], Snapshot]:
    """Restore files first, because jobs start as soon as the queue is there; return what is missing, and the queue."""
    with screen.status("restore") as line:
        for entry in storage:
            chunks = archive.read_part(path, archive.storage_part(entry), Progress(line, "restored"))
            controller.write(state_backup.write_files(spec.storage[entry].mount), chunks)
            screen.say(f"storage.{entry}: files restored")
        controller.write(
            state_backup.receive_state(), archive.read_part(path, archive.CONTROLLER, Progress(line, "restored"))
        )
        # Files take a while: someone may have submitted a job meanwhile.
        changes = f"queue and accounting were not changed{', files were restored' if storage else ''}"
        require_idle(controller, controller.stack.name, changes)
        line.update("starting Slurm with the queue and the accounting of the archive")
        controller.run(state_backup.load_state())
        after = parse_snapshot(controller.run(TAKE))
    return find_losses(parse_snapshot(manifest.snapshot), after), after


def _find(stack: StackHome, source: str) -> Path:
    """Return the archive with this path, or with this name in the folder of backups."""
    path = Path(source).expanduser()
    return path if path.exists() else stack.home.backups / path.name


def _require_space(controller: ControllerShell, spec: ClusterSpec, storage: dict[str, int]) -> None:
    for name, size in storage.items():
        free = int(controller.run(state_backup.free_bytes(spec.storage[name].mount)))
        if free < size:
            needed, available = screen.format_size(size), screen.format_size(free)
            raise Stop(
                f"storage.{name} has {available} free, the files need {needed}; nothing was changed", "free space"
            )


def _require_empty(controller: ControllerShell, spec: ClusterSpec, storage: dict[str, int]) -> None:
    """Raise Stop if the cluster has jobs or files of people."""
    present = []
    if count := int(controller.run(COUNT_JOBS)):
        present.append(f"{format_count(count, 'job')} in the accounting")
    for name in storage:
        mount = spec.storage[name].mount
        if file := controller.run(state_backup.find_files(mount, name)):
            present.append(f"files in {mount}, such as {mount}/{file.removeprefix('./')}")
    if present:
        what = f"the cluster is not empty, and nothing was changed: it has {' and '.join(present)}"
        fix = "--overwrite replaces queue, accounting and the files that the archive has; --no-files leaves files alone"
        raise Stop(what, fix, BAD_INPUT)


def _again(name: str, path: Path) -> str:
    command = format_command("restore", name, f"ARCHIVE={path}", "OVERWRITE=1")
    return f"remove the cause, then `{command}`: every part can be restored again"
