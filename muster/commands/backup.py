"""`muster backup`: write queue, accounting and shared files of a running cluster to one archive; list archives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.status import Status

from bootstrap import state_backup
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra import archive
from infra.archive import ArchiveError, ArchiveWriter, Manifest
from infra.controller_shell import ControllerShell, ScriptError
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import Home, StackHome, private_folder
from infra.targets.mixins import Archives
from infra.targets.registry import parse_spec, target_of
from muster.commands import screen
from muster.commands.stacks import require_running_stack, resolve_stack
from muster.commands.upgrade import read_spec_text
from slurm.control.snapshot import TAKE, parse_snapshot
from slurm.upgrade_check import describe_snapshot

# tar's exit code if files changed while it read them.
_CHANGED = 1


def backup(name: str, *, to: Path | None = None, files: bool = True) -> Path:
    """Write an archive of a running cluster and return its path; raise Stop, with no archive left, if that fails."""
    stack, spec = read_running_spec(name)
    folder, began = to or private_folder(stack.home.backups), time.monotonic()
    path = folder / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{archive.SUFFIX}"
    with lock.held(stack, "backup", wait=False, say=screen.say):
        try:
            archive.remove_partial(folder, name)
            with screen.status("backup") as line, archive.create_archive(path, Progress(line, "written")) as writer:
                manifest = _write(writer, ControllerShell(stack), stack, spec, files=files)
        except ArchiveError as problem:
            raise Stop(problem.what, problem.fix, FAILED) from None
        except (ScriptError, ValueError) as problem:
            what = f"the backup failed, and no archive was written: controller: {problem}"
            raise Stop(what, f"check the cluster with `{format_command('status', name)}`", FAILED) from None
    size = screen.format_size(path.stat().st_size)
    screen.print_success(f"{path}: {_describe(manifest)}, {size} in {time.monotonic() - began:.0f} s")
    restore = format_command("restore", name, f"ARCHIVE={path}")
    screen.say(
        f"`{restore}` restores it. It holds the files of all users: copy it to another disk that only you can read"
    )
    return path


def list_backups(name: str | None) -> None:
    """Print the archives in MUSTER_HOME, of one stack or of all."""
    home = resolve_stack(name).home if name else Home.of(os.environ)
    paths = sorted(home.backups.glob(f"{name or '*'}-*{archive.SUFFIX}"))
    rows = [row for path in paths if (row := _row(path, name))]
    if not rows:
        screen.print_success(f"no backups in {home.backups}")
        return
    table = screen.new_table("archive", "stack", "created", "slurm", "size", "contents", right=["size"])
    for row in rows:
        table.add_row(*row)
    screen.out().print(table)
    screen.say(f"in {home.backups}")


def read_running_spec(name: str) -> tuple[StackHome, ClusterSpec]:
    """Return a stack that is up and the spec of its last `up`; raise Stop if its target has no archives."""
    stack = require_running_stack(name)
    spec = parse_spec(read_spec_text(pulumi.resources(stack), name))
    target = target_of(spec)
    if not isinstance(target, Archives):
        raise Stop(f"stack: target {target.name} has no archives; {target.backup_help}", code=BAD_INPUT)
    return stack, spec


class Progress:
    """Shows the bytes that were written or read in a status line."""

    def __init__(self, line: Status, verb: str) -> None:
        self._line, self._verb, self._total = line, verb, 0

    def __call__(self, count: int) -> None:
        self._total += count
        self._line.update(f"archive: {screen.format_size(self._total)} {self._verb}")


def _write(
    writer: ArchiveWriter, controller: ControllerShell, stack: StackHome, spec: ClusterSpec, *, files: bool
) -> Manifest:
    snapshot = controller.run(TAKE)
    parse_snapshot(snapshot)
    began = time.monotonic()
    controller.run(state_backup.save_state())
    screen.say(f"queue and accounting: saved while slurmctld was stopped for {time.monotonic() - began:.1f} s")
    writer.add(archive.CONTROLLER, controller.read(state_backup.read_state()))
    sizes = {}
    for storage, entry in spec.storage.items() if files else ():
        sizes[storage] = int(controller.run(state_backup.measure_files(entry.mount, storage)))
        screen.say(f"storage.{storage}: {screen.format_size(sizes[storage])} of files")
        writer.add(archive.storage_part(storage), _read_files(controller, storage, entry.mount))
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        muster=version("muster"),
        stack=stack.name,
        cluster=spec.name,
        slurm=spec.software.slurm,
        snapshot=snapshot,
        storage=sizes,
    )
    writer.finish(manifest)
    return manifest


def _read_files(controller: ControllerShell, storage: str, mount: str) -> Iterator[bytes]:
    try:
        yield from controller.read(state_backup.read_files(mount, storage))
    except ScriptError as problem:
        if problem.code != _CHANGED:
            raise
        lines = problem.err.strip().splitlines()
        changed = (
            f"{format_count(len(lines), 'file')} changed during the backup, such as {lines[0].removeprefix('tar: ')}"
        )
        screen.say(f"warning: storage.{storage}: {changed}; a job may have written there")


def _row(path: Path, stack: str | None) -> tuple[str, ...] | None:
    size = screen.format_size(path.stat().st_size)
    try:
        manifest = archive.read_manifest(path)
    except ArchiveError as problem:
        return path.name, "?", "?", "?", size, problem.what
    if stack not in (None, manifest.stack):
        return None
    return path.name, manifest.stack, manifest.created, manifest.slurm, size, _describe(manifest)


def _describe(manifest: Manifest) -> str:
    files = [f"storage {name} ({screen.format_size(size)})" for name, size in manifest.storage.items()]
    return ", ".join([describe_snapshot(parse_snapshot(manifest.snapshot)), *(files or ["no files"])])
