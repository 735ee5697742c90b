"""Run the spec's own programs on this machine: each one once, and only if it has the expected hash."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal

from bootstrap.action import LISTS_LOCK
from bootstrap.errors import BootstrapError
from cluster.inventory import InventoryModel, Node, Role
from infra.targets.aws.node import early

When = Literal["start", "configured"]
DONE = Path("/var/lib/muster/hooks")
"""Folder with one file per program that has succeeded; it holds the digest of program and arguments."""
LOG = "/var/log/muster/node.log"
TAIL_BYTES = 4096


class NodeHook(InventoryModel):
    """A program of the spec."""

    name: str
    when: When
    object: str
    """Bucket and key."""
    sha256: str
    args: tuple[str, ...] = ()
    roles: tuple[Role, ...]
    timeout_s: int

    @property
    def digest(self) -> str:
        return sha256("\0".join([self.sha256, *self.args]).encode()).hexdigest()

    @property
    def step(self) -> str:
        return f"hook {self.name}"


def select_hooks(hooks: Iterable[NodeHook], when: When, role: Role, done: Path = DONE) -> list[NodeHook]:
    """Return the programs that a machine still has to run; one that changed since is run again."""
    chosen = (hook for hook in hooks if hook.when == when and role in hook.roles)
    return [hook for hook in chosen if _read(done / hook.name) != hook.digest]


def run_hooks(
    hooks: Sequence[NodeHook], node: Node, region: str, done: Path = DONE, lists_lock: str = LISTS_LOCK
) -> None:
    """Run the programs in order; raise BootstrapError at the first that cannot be fetched or fails."""
    if hooks:
        # A program may use apt, which does not wait for package lists that user data is still fetching.
        subprocess.run(["flock", lists_lock, "true"], stderr=subprocess.DEVNULL, check=False)
    for hook in hooks:
        print(f"muster: {hook.step} start s3://{hook.object}", flush=True)
        with tempfile.TemporaryDirectory(prefix="muster-hook-") as folder:
            program = Path(folder) / hook.name
            _fetch(hook, node, region, program)
            _run(hook, node, program)
        done.mkdir(parents=True, exist_ok=True)
        (done / hook.name).write_text(hook.digest)


def _fetch(hook: NodeHook, node: Node, region: str, program: Path) -> None:
    bucket, _, key = hook.object.partition("/")
    try:
        early.get(region, bucket, key, str(program), hook.sha256)
    except RuntimeError as error:
        fix = (
            f"correct `aws.hooks.{hook.name}`: script and sha256 (`sha256sum`) must be those of an object in {region} "
            "that the account may read; then run `muster up` again"
        )
        raise BootstrapError(node.name, hook.step, str(error), fix=fix) from None
    program.chmod(0o700)


def _run(hook: NodeHook, node: Node, program: Path) -> None:
    variables = {"MUSTER_NODE": node.name, "MUSTER_ROLE": node.role, "MUSTER_GROUP": node.group or ""}
    fix = f"correct the program, upload it and write its new hash as `aws.hooks.{hook.name}.sha256`; or remove the hook"
    with tempfile.TemporaryFile() as output:
        try:
            # A file, not a pipe, takes the output: a daemon that the program starts may hold it open.
            process = subprocess.run(
                [program, *hook.args],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                timeout=hook.timeout_s,
                check=False,
            )
            failure = f"exit code {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            failure = f"not finished after {hook.timeout_s} s"
        except OSError as error:
            failure = f"cannot be executed: {error.strerror}"
        text = _read_tail(output)
    print(text, flush=True)
    if failure:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise BootstrapError(node.name, hook.step, f"{failure}: {last.strip()}", LOG, fix)


def _read_tail(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
    return output.read().decode(errors="replace")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
