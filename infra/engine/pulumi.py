"""The Pulumi commands that `muster` uses, each as one function of a stack."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from infra.engine import events, lock, project
from infra.engine.environment import AS_THE_STACK_SAYS, How, prepare, stack_environment
from infra.engine.event_pipe import EventPipe
from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.home import StackHome

_TICK_S = 0.1
_POLL_S = 0.5
_COMMON = ("--non-interactive", "--color", "never")
_RUN = ("--yes", "--skip-preview", "--suppress-outputs", "--suppress-permalink", "--event-log")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Caller:
    """Who runs a long command: the stack's lock it holds, what it does meanwhile, and how it tells people things."""

    held: int
    tick: Callable[[], None]
    say: Say


def up(stack: StackHome, caller: Caller, how: How) -> tuple[int, events.Result]:
    """Asks the machines what is (`--refresh`) and makes them what the stack file says."""
    _open(stack, caller.say)
    stack.progress.write_text("")
    return _run(stack, caller, "up", "--refresh", how=how)


def destroy(stack: StackHome, caller: Caller) -> tuple[int, events.Result]:
    """What is protected stays, with all that it needs."""
    _open(stack, caller.say)
    return _run(stack, caller, "destroy", "--continue-on-error", "--exclude-protected")


def outputs(stack: StackHome) -> dict[str, Any]:
    """Plain ones; secrets stay hidden."""
    if not stack.state.exists():
        return {}
    project.write(stack)
    done = _quick(stack, "stack", "output", "--json", "--stack", stack.name)
    loaded: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return loaded


def resources(stack: StackHome) -> list[dict[str, Any]]:
    """The state's resources, secrets in plain text: for use in memory only."""
    project.write(stack)
    done = _quick(stack, "stack", "export", "--show-secrets", "--stack", stack.name)
    if done.returncode != 0:
        raise Stop(f"the state of stack {stack.name} cannot be read: {_last_line(done.stderr)}", _state_fix(stack))
    found: list[dict[str, Any]] = json.loads(done.stdout)["deployment"].get("resources", [])
    return found


def forget(stack: StackHome) -> None:
    """Drops the stack from the backend, whatever the state says still exists."""
    if stack.state.exists():
        project.write(stack)
        _quick(stack, "stack", "rm", "--yes", "--force", "--remove-backups", "--stack", stack.name)
        stack.state.unlink(missing_ok=True)


def waiting_for(stack: StackHome) -> lock.Holder | None:
    """Who runs Pulumi on this stack right now, if anybody does."""
    holders = lock.pulumi_holders(stack)
    return None if not holders or lock.stale(holders, socket.gethostname()) else holders[0]


def wait_for_others(stack: StackHome, *, wait: bool, say: Say) -> None:
    """Somebody may run `pulumi` itself on the same stack."""
    told = False
    while holder := waiting_for(stack):
        if not wait:
            raise lock.refusal(stack.name, holder)
        if not told:
            say(f"waiting for {holder}")
            told = True
        time.sleep(_POLL_S)


def environment_of(stack: StackHome, how: How = AS_THE_STACK_SAYS) -> dict[str, str]:
    env = stack_environment(os.environ, stack, how)
    if shutil.which("pulumi", path=env["PATH"]) is None:
        raise Stop("the Pulumi CLI is not installed", "make setup")
    return env


def _open(stack: StackHome, say: Say) -> None:
    """Project folder, stack and lock in the state that a run expects."""
    prepare(stack.home)
    project.write(stack)
    _set_broken_state_aside(stack, say)
    if stack.state.exists():
        _clear_stale_lock(stack, say)
        return
    done = _quick(stack, "stack", "init", stack.name, "--no-select")
    if done.returncode != 0 and not stack.state.exists():
        raise Stop(f"Pulumi cannot create stack {stack.name}: {_last_line(done.stderr)}", _state_fix(stack))


def _set_broken_state_aside(stack: StackHome, say: Say) -> None:
    """A state nobody can read is a lost one: machines are found again by their names."""
    try:
        json.loads(stack.state.read_text() if stack.state.exists() else "{}")
    except ValueError:
        aside = stack.state.rename(stack.state.with_suffix(".broken"))
        say(f"the state file cannot be read; it is kept as {aside}, and what exists is found by name")


def _clear_stale_lock(stack: StackHome, say: Say) -> None:
    holders = lock.pulumi_holders(stack)
    if not lock.stale(holders, socket.gethostname()):
        return
    say(f"the last run was killed ({holders[0]}): taking over its lock")
    _quick(stack, "cancel", "--yes", "--stack", stack.name)


def _run(
    stack: StackHome, caller: Caller, command: str, *options: str, how: How = AS_THE_STACK_SAYS
) -> tuple[int, events.Result]:
    log = stack.log(command)
    log.write_text("")
    arguments = ["pulumi", command, *_RUN, str(stack.events), *options, "--stack", stack.name, *_COMMON]
    with EventPipe(stack.events) as pipe:
        code = _wait(_supervised(stack, log, arguments, caller.held, how), caller, pipe)
        result = events.parse(pipe.lines())
    if code != 0 and not result.failures:
        said = events.clean(_errors(log.read_text())) or f"pulumi {command} ended with code {code}"
        result = events.Result(result.changes, (events.Failure("", _explained(said, stack)),))
    return code, result


def _supervised(stack: StackHome, log: Path, arguments: list[str], held: int, how: How) -> subprocess.Popen[bytes]:
    supervisor = Path(__file__).with_name("supervisor.py")
    return subprocess.Popen(
        [sys.executable, "-IS", str(supervisor), str(log), *arguments],
        stdin=subprocess.PIPE,
        env=environment_of(stack, how),
        cwd=stack.folder,
        pass_fds=(held,),
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], caller: Caller, pipe: EventPipe) -> int:
    """The first Ctrl-C lets running steps end, the second ends everything."""
    interrupted = False
    while True:
        try:
            return process.wait(_TICK_S)
        except subprocess.TimeoutExpired:
            pipe.drain()
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


def _quick(stack: StackHome, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment_of(stack)
    return subprocess.run(
        ["pulumi", *arguments, *_COMMON],
        env=env,
        cwd=stack.folder,
        stdin=subprocess.DEVNULL,
        text=True,
        capture_output=True,
        check=False,
    )


def _errors(log: str) -> str:
    """From the first line that says `error:`."""
    start = log.find("error: ")
    return log[start:].strip() if start >= 0 else ""


def _explained(said: str, stack: StackHome) -> str:
    if "incorrect passphrase" not in said:
        return said
    return (
        f"the passphrase in {stack.home.passphrase} is not the one that the state of stack {stack.name} was made with. "
        f"Fix: put the old one back, or remove the cluster by label with `{typed('teardown', stack.name)}` "
        "and make it anew"
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it says nothing"


def _state_fix(stack: StackHome) -> str:
    removes = typed("teardown", stack.name)
    return f"check {stack.home.passphrase} and {stack.state}; `{removes}` removes by label what exists"
