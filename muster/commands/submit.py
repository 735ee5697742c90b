"""`muster submit`: copy a job file to the login node, submit it there, and follow its log until the job ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.inventory import Inventory
from infra.engine.command_line import format_command
from infra.engine.stop import FAILED, INTERRUPTED, Stop
from infra.home import Home, StackHome
from infra.shell import read_inventory, run, target_of_inventory, unattended
from muster.commands import job_files, job_layout, screen
from muster.commands.job_directives import add_options
from muster.commands.job_request import check_nodes
from muster.commands.stacks import require_running_stack
from muster.commands.train import check_training
from slurm.control.follow import follow_job
from slurm.control.pending_reasons import describe_reason
from slurm.job_environment import check_settings, parse_settings

FOLDER = "jobs"
_CONTROL = b"\x1e"
_SSH_ERROR_CODE = 255
_MAX_FAILURES_IN_A_ROW = 5
# A connection that lasted this long does not count as a failure.
_STABLE_CONNECTION_S = 60.0
_RECONNECT_DELAY_S = 1.0
_GOOD = "COMPLETED"
_QUIET_REASONS = frozenset({"None", "", "(null)"})


@dataclass
class FollowedJob:
    """The state of a job whose log is being followed."""

    job: str
    state: str = "PENDING"
    reason: str = ""
    nodes: str = ""
    exit_code: str = ""
    log: str = ""
    offset: int = 0
    ended: bool = False

    def update(self, control: str) -> bool:
        """Apply a control line, and return whether the job's state or reason changed."""
        kind, *fields = control.split("|")
        if kind == "offset":
            self.offset = int(fields[0])
        if kind == "log":
            self.log = "|".join(fields)
        if kind != "state":
            return False
        before = (self.state, self.reason)
        self.state, self.reason, self.nodes, self.exit_code = (*fields, "", "", "", "")[:4]
        return before != (self.state, self.reason)


def submit(name: str, job: str | None, arguments: list[str], nodes: int | None = None) -> None:
    """Submit a job file and follow its log; raise Stop if the job fails."""
    home = Home.of(os.environ)
    if not job:
        raise job_files.explain_missing_job("no job file is given", home)
    file = job_files.find_job_file(job, home)
    stack = require_running_stack(name)
    inventory = read_inventory(stack)
    target_of_inventory(inventory).check_shell_tools()
    login = inventory.login.name
    text = file.read_text(errors="replace")
    for warning in check_job_environment(text, inventory):
        screen.say(f"{file.name}: {warning}")
    options = [f"--nodes={nodes}"] if nodes else []
    request = add_options(text, options)
    check_nodes(request, job, inventory, name)
    check_training(text, arguments)
    arguments = job_layout.choose_layout(stack, target_of_inventory(inventory), request, arguments)
    began = time.monotonic()
    followed = FollowedJob(send(stack, login, file, arguments, options))
    screen.out().print(f"job [bold]{followed.job}[/bold] submitted: {file.name}")
    try:
        follow(stack, login, followed)
    except KeyboardInterrupt:
        _print_how_to_resume(name, followed)
        raise Stop("", code=INTERRUPTED) from None
    _print_end(followed, time.monotonic() - began)


def check_job_environment(job: str, inventory: Inventory) -> list[str]:
    """Return warnings about NCCL variables in a job that are useless or harmful on this cluster's fabrics."""
    fabrics = sorted({node.fabric for node in inventory.compute} | {nodes.fabric for nodes in inventory.sets})
    findings = (finding for fabric in fabrics for finding in check_settings(parse_settings(job), fabric))
    return list(dict.fromkeys(map(str, findings)))


def send(stack: StackHome, login: str, file: Path, arguments: list[str], options: Sequence[str] = ()) -> str:
    """Copy a job file to ~/jobs, submit it, and return its id; `options` are for sbatch, `arguments` for the job."""
    line = shlex.join(["sbatch", "--parsable", *options, file.name, *arguments])
    script = f"set -e; mkdir -p {FOLDER}; cd {FOLDER}; cat > {shlex.quote(file.name)}; {line}"
    try:
        done = run(stack, login, script, data=file.read_bytes())
    except subprocess.TimeoutExpired as late:
        raise Stop(
            f"the login node did not answer within {late.timeout:.0f} s; the job may have been submitted nevertheless",
            f"`{format_command('status', stack.name)}` shows the queue",
        ) from None
    if done.returncode == _SSH_ERROR_CODE:
        raise Stop(f"the login node cannot be reached: {done.stderr.strip()}", format_command("status", stack.name))
    if done.returncode != 0:
        message = done.stderr.strip().replace("sbatch: error: ", "")
        fix = f"request what the cluster has: `{format_command('status', stack.name)}` shows it"
        raise Stop(f"sbatch refused {file.name}: {message}", fix)
    return done.stdout.strip().splitlines()[-1].split(";")[0]


def follow(stack: StackHome, login: str, followed: FollowedJob) -> None:
    """Print the log as it grows, and reconnect at the same offset if the connection breaks.

    Only failures in a row end it, because a job can run for days while ssh sessions have a maximum duration.
    """
    failed = 0
    while failed < _MAX_FAILURES_IN_A_ROW:
        began = time.monotonic()
        process = _start(stack, login, followed)
        for text, control in split_output(process):
            if text:
                sys.stdout.buffer.write(text)
                sys.stdout.flush()
            if control and followed.update(control):
                _print_state(followed)
        if process.wait() == 0:
            return
        failed = 0 if time.monotonic() - began > _STABLE_CONNECTION_S else failed + 1
        screen.say("the connection broke; reconnecting")
        time.sleep(_RECONNECT_DELAY_S)
    raise Stop(f"job {followed.job} can no longer be followed", format_command("status", stack.name))


def split_output(process: subprocess.Popen[bytes]) -> Iterator[tuple[bytes, str]]:
    """Yield the job's output and our control lines, which may begin in the middle of an output line."""
    for line in process.stdout or ():
        text, mark, control = line.partition(_CONTROL)
        yield text, control.decode(errors="replace").strip() if mark else ""


def _start(stack: StackHome, login: str, followed: FollowedJob) -> subprocess.Popen[bytes]:
    remote = follow_job(followed.job, followed.offset)
    sys.stdout.flush()
    return subprocess.Popen(unattended(stack, login, None, [remote]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _print_state(followed: FollowedJob) -> None:
    reason = "" if followed.reason in _QUIET_REASONS else f": {describe_reason(followed.reason)}"
    nodes = f" on {followed.nodes}" if followed.nodes not in _QUIET_REASONS else ""
    if followed.state in ("PENDING", "CONFIGURING", "RUNNING"):
        screen.say(f"job {followed.job} {followed.state.lower()}{reason if followed.state == 'PENDING' else nodes}")


def _print_how_to_resume(name: str, followed: FollowedJob) -> None:
    tail = f"tail -n +1 -F {shlex.quote(followed.log) if followed.log else f'{FOLDER}/*-{followed.job}.out'}"
    state = "waiting" if followed.state == "PENDING" else followed.state.lower()
    screen.out().print(f"\njob {followed.job} is still {state}; only its log is no longer followed")
    screen.print_next_steps(
        [
            (format_command("ssh", name, then=tail), "follow it again"),
            (format_command("ssh", name, then=f"scancel {followed.job}"), "cancel it"),
        ]
    )


def _print_end(followed: FollowedJob, seconds: float) -> None:
    where = f", log {followed.log}" if followed.log else ""
    if followed.state == _GOOD:
        screen.print_success(f"job {followed.job} {_GOOD} in {screen.format_duration(seconds)}{where}")
        return
    code = followed.exit_code.split(":")[0]
    raise Stop(f"job {followed.job} {followed.state}, exit code {code or 'unknown'}{where}", code=FAILED)
