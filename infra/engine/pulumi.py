"""The Pulumi commands that `muster` uses, each as a function of a stack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import yaml

from infra.engine import events, lock, project, remote_state, with_program
from infra.engine.command_line import format_command
from infra.engine.environment import DEFAULT_OPTIONS, RunOptions, prepare, stack_environment
from infra.engine.events import EventPipe
from infra.engine.slow_operations import SlowOperations
from infra.engine.stop import Stop
from infra.home import StackHome

_TICK_S = 0.1
_POLL_S = 0.5
_COMMON = ("--non-interactive", "--color", "never")
_RUN = ("--yes", "--skip-preview", "--suppress-outputs", "--suppress-permalink", "--event-log")

_OTHER_OPERATOR = "get the passphrase from an operator who has it"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Caller:
    """The caller of a long command: the lock it holds, what it does while it waits, and how it reports progress."""

    held: int
    """Descriptor of the stack's lock."""
    tick: Callable[[], None]
    say: Say


def up(stack: StackHome, caller: Caller, run_options: RunOptions) -> tuple[int, events.Result]:
    """Refresh the state from the machines, and apply the stack file."""
    _open(stack, caller.say)
    stack.progress.write_text("")
    return _run(stack, caller, "up", "--refresh", run_options=run_options)


def destroy(stack: StackHome, caller: Caller) -> tuple[int, events.Result]:
    """Remove the cluster, except protected resources and those that they depend on."""
    _open(stack, caller.say)
    return _run(stack, caller, "destroy", "--continue-on-error", "--exclude-protected")


def outputs(stack: StackHome) -> dict[str, Any]:
    """Return the outputs of a stack; secrets stay hidden."""
    if not stack.state.exists():
        return {}
    project.write(stack)
    done = _quick(stack, "stack", "output", "--json", "--stack", stack.name)
    loaded: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return loaded


def resources(stack: StackHome) -> list[dict[str, Any]]:
    """Return the resources of the state, with secrets in plain text: never write them anywhere."""
    project.write(stack)
    done = _quick(stack, "stack", "export", "--show-secrets", "--stack", stack.name)
    if done.returncode != 0:
        raise Stop(f"the state of stack {stack.name} cannot be read: {_last_line(done.stderr)}", _state_fix(stack))
    in_state: list[dict[str, Any]] = json.loads(done.stdout)["deployment"].get("resources", [])
    return in_state


def export(stack: StackHome) -> dict[str, Any]:
    """Return the state as Pulumi reads it, with encrypted secrets."""
    project.write(stack)
    done = _quick(stack, "stack", "export", "--stack", stack.name)
    if done.returncode != 0:
        raise Stop(f"the state of stack {stack.name} cannot be read: {_last_line(done.stderr)}", _state_fix(stack))
    deployment: dict[str, Any] = json.loads(done.stdout)["deployment"]
    return deployment


def encrypt(stack: StackHome, path: str, value: str, say: Say) -> tuple[str, list[str]]:
    """Return a value as Pulumi encrypts it at a path of the configuration, and the lines that decrypting it needs."""
    _open(stack, say)
    # The value goes through standard input, because every user of this machine can read command lines.
    done = _quick(stack, "config", "set", "--secret", "--path", path, "--stack", stack.name, given=value)
    if done.returncode != 0:
        raise Stop(f"Pulumi cannot encrypt {path}: {_last_line(done.stderr)}", _state_fix(stack))
    written = stack.working_copy.read_text()
    secret = yaml.safe_load(written)["config"]
    for key in path.split("."):
        secret = secret[key]
    return str(secret["secure"]), project.list_encryption_lines(written)


def forget(stack: StackHome) -> None:
    """Remove the stack from the backend, even if its state still has resources."""
    if stack.state.exists():
        project.write(stack)
        done = _quick(stack, "stack", "rm", "--yes", "--force", "--remove-backups", "--stack", stack.name)
        if stack.home.remote and remote_state.pull(stack):
            what = f"the state of stack {stack.name} cannot be removed: {_last_line(done.stderr)}"
            raise Stop(what, _state_fix(stack))
        stack.state.unlink(missing_ok=True)


def find_running_pulumi(stack: StackHome) -> lock.Holder | None:
    """Return the process that is running Pulumi on this stack, if there is one."""
    if stack.home.remote:
        remote_state.pull(stack)
    holders = lock.pulumi_holders(stack)
    return None if not holders or lock.find_stale(stack) else holders[0]


def wait_for_others(stack: StackHome, *, wait: bool, say: Say) -> None:
    """Wait until no other `pulumi` runs on the stack; without `wait`, raise Stop if one does."""
    announced = False
    while holder := find_running_pulumi(stack):
        if not wait:
            raise lock.in_use_error(stack, holder)
        if not announced:
            say(f"waiting for {holder}")
            announced = True
        time.sleep(_POLL_S)


def environment_of(stack: StackHome, run_options: RunOptions = DEFAULT_OPTIONS) -> dict[str, str]:
    """Return the environment of a stack's commands; raise Stop if the Pulumi CLI is missing."""
    env = stack_environment(os.environ, stack, run_options)
    if shutil.which("pulumi", path=env["PATH"]) is None:
        raise Stop("the Pulumi CLI is not installed", "make setup")
    return env


def serve_program(folder: Path) -> list[str]:
    """Return the beginning of a command line that runs `pulumi` with the program in a folder."""
    return [sys.executable, "-IS", str(Path(with_program.__file__)), str(folder)]


def _open(stack: StackHome, say: Say) -> None:
    """Prepare the project folder, the stack and the lock for a run."""
    prepare(stack.home)
    if stack.home.remote:
        remote_state.pull(stack)
        check_readable(stack)
    project.write(stack)
    _set_broken_state_aside(stack, say)
    if stack.state.exists():
        _clear_stale_lock(stack, say)
        return
    provider = remote_state.open_store(stack.home).secrets_provider
    encryption = ["--secrets-provider", provider] if provider else []
    done = _quick(stack, "stack", "init", stack.name, "--no-select", *encryption)
    if stack.home.remote:
        remote_state.pull(stack)
    if done.returncode != 0 and not stack.state.exists():
        raise Stop(f"Pulumi cannot create stack {stack.name}: {_last_line(done.stderr)}", _state_fix(stack))


def check_readable(stack: StackHome) -> None:
    """Raise Stop if the state is damaged; unlike a file, a remote state is never set aside, because it has versions."""
    try:
        json.loads(stack.state.read_text() if stack.state.exists() else "{}")
    except ValueError as damage:
        key = stack.state.relative_to(stack.home.state)
        raise Stop(
            f"the state of stack {stack.name} ({key} in {stack.home.remote}) is damaged: {damage}",
            f"`{format_command('state show', stack.name)}` lists its versions, "
            f"`{format_command('state restore', stack.name)} VERSION` restores one",
        ) from None


def _set_broken_state_aside(stack: StackHome, say: Say) -> None:
    """Rename an unreadable state file: the next `up` finds the machines by their names."""
    try:
        json.loads(stack.state.read_text() if stack.state.exists() else "{}")
    except ValueError:
        aside = stack.state.rename(stack.state.with_suffix(".broken"))
        say(f"the state file is unreadable; renamed to {aside}; existing resources are found by name")


def _clear_stale_lock(stack: StackHome, say: Say) -> None:
    holder = lock.find_stale(stack)
    if holder is None:
        return
    say(f"the last run was killed ({holder}): taking over its lock")
    _quick(stack, "cancel", "--yes", "--stack", stack.name)


def _run(
    stack: StackHome, caller: Caller, command: str, *arguments: str, run_options: RunOptions = DEFAULT_OPTIONS
) -> tuple[int, events.Result]:
    log = stack.log(command)
    log.write_text("")
    served = serve_program(stack.home.repo / "infra")
    line = [*served, "pulumi", command, *_RUN, str(stack.events), *arguments, "--stack", stack.name, *_COMMON]
    with EventPipe(stack.events) as pipe:
        code = _wait(_start_supervised(stack, log, line, caller.held, run_options), caller, pipe)
        result = events.parse(pipe.lines())
    if stack.home.remote:
        remote_state.pull(stack)
    if code != 0 and not result.failures:
        message = events.clean(_errors(log.read_text())) or f"pulumi {command} ended with code {code}"
        result = events.Result(result.changes, (events.Failure("", _explain(message, stack)),))
    return code, result


def _start_supervised(
    stack: StackHome, log: Path, line: list[str], held: int, run_options: RunOptions
) -> subprocess.Popen[bytes]:
    supervisor = Path(__file__).with_name("supervisor.py")
    return subprocess.Popen(
        [sys.executable, "-IS", str(supervisor), str(log), *line],
        stdin=subprocess.PIPE,
        env=environment_of(stack, run_options),
        cwd=stack.folder,
        pass_fds=(held,),
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], caller: Caller, pipe: EventPipe) -> int:
    """Wait for the command; the first Ctrl-C lets running steps finish, the second stops everything."""
    interrupted, slow = False, SlowOperations(caller.say)
    while True:
        try:
            return process.wait(_TICK_S)
        except subprocess.TimeoutExpired:
            slow.update(pipe.take_lines())
            caller.tick()
        except KeyboardInterrupt:
            if interrupted:
                _pipe(process).close()
                process.wait()
                raise
            interrupted = True
            caller.say("stopping when the running steps are done; Ctrl-C again stops at once")
            _pipe(process).write(b".")
            _pipe(process).flush()


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", process.stdin)


def _quick(stack: StackHome, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = environment_of(stack)
    return subprocess.run(
        ["pulumi", *arguments, *_COMMON],
        env=env,
        cwd=stack.folder,
        input=given,
        text=True,
        capture_output=True,
        check=False,
    )


def _errors(log: str) -> str:
    """Return the log from its first error on."""
    start = log.find("error: ")
    return log[start:].strip() if start >= 0 else ""


def _explain(message: str, stack: StackHome) -> str:
    if "incorrect passphrase" not in message:
        return message
    teardown = format_command("teardown", stack.name)
    wrong = f"the passphrase in {stack.home.passphrase} does not match the state of stack {stack.name}"
    if stack.home.remote:
        return f"{wrong} in {stack.home.remote}. Fix: {_OTHER_OPERATOR}"
    return (
        f"{wrong}. Fix: restore the old passphrase, or remove the cluster by label with `{teardown}` "
        "and create it again"
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "no message"


def _state_fix(stack: StackHome) -> str:
    if stack.home.remote:
        return f"{_OTHER_OPERATOR}; `{format_command('state show', stack.name)}` shows the state"
    removes = format_command("teardown", stack.name)
    return f"check {stack.home.passphrase} and {stack.state}; `{removes}` removes by label what exists"
