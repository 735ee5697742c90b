"""Rehearse a stack: `up`, a job across nodes, and `teardown`, with the real engine and the order and delays of AWS."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.spec import ClusterSpec
from infra.engine.stop import FAILED, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.targets.aws.build.reports import LOG
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.existing_resources import names_foreign_storage
from infra.targets.aws.rehearse.idle_cost import report_idle_cost
from infra.targets.aws.rehearse.plugin import PLUGIN
from infra.targets.aws.rehearse.rehearsed_stack import RehearsedStack, prepare_stack
from infra.targets.aws.rehearse.simulated_cloud import SimulatedCloud, list_used_ranges, open_cloud, require_environment
from infra.targets.aws.rehearse.timeline import Event, Timeline, render_picture, render_text
from infra.targets.aws.spec import region_of
from infra.targets.target import Console, RehearsalOptions
from slurm.control.jobs import show_result

_POLL_S = 1.0
# What AWS takes at most until a node runs (delays.py), and what this machine takes.
_AWS_JOB_S, _OWN_JOB_S = 480.0, 480.0
_INTERRUPT_TIMEOUT_S = 20.0
# Seen in accounting; anything else is a state from which a job may still end.
_END_STATES = re.compile(
    r"COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED|REVOKED"
)
_PHASE = "rehearsal"
_SLURM_LOGS = "/var/log/slurm/*.log"


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal under way."""

    rehearsed: RehearsedStack
    cloud: SimulatedCloud
    console: Console

    def up(self) -> None:
        options = ["--no-preflight"] if names_foreign_storage(self.rehearsed.spec) else []
        self._muster("up", *options)

    def teardown(self) -> None:
        self._muster("teardown", "--yes", "--force")

    def run_job(self, group: str, nodes: int) -> str:
        """Submit a job across nodes, wait until it has ended, and return its output; raise Stop if it failed."""
        user = next(iter(self.rehearsed.spec.users))
        options = f"--parsable -p {group} -N {nodes}"
        job = self._on_controller(f"cd ~{user} && runuser -u {user} -- sbatch {options} --wrap 'srun hostname'").strip()
        self.cloud.timeline.record(f"job {job}", "submitted")
        state, deadline = "", time.monotonic() + limit_job_s(self.cloud.instances.clock.speed)
        while time.monotonic() < deadline:
            state = self._on_controller(show_result(job)).strip()
            self.cloud.timeline.record(f"job {job}", state.partition("|")[0].lower() or "submitted")
            if has_ended(state):
                break
            time.sleep(_POLL_S)
        output = self._on_controller(f"cat ~{user}/slurm-{job}.out 2>/dev/null || true")
        if not state.startswith("COMPLETED"):
            raise Stop(f"job {job} did not complete: {state or 'not in accounting'}\n{output}", code=FAILED)
        return output

    def check(self) -> None:
        """Raise Stop if something billed was left, a call was denied, or this machine rather than AWS failed."""
        instances = self.cloud.instances
        left = [instance.name for instance in instances.by_id.values() if instance.raw._state.name != "terminated"]
        keeps = any(entry.keep for entry in self.rehearsed.spec.storage.values())
        billed = [
            what
            for what in self.cloud.account.list_billed()
            if what not in self.cloud.existing and not (keeps and what.startswith("filesystem "))
        ]
        problems = [
            *(f"machine {name} is left after teardown" for name in left),
            *(f"{what} is left after teardown" for what in billed),
            *dict.fromkeys(self.cloud.denials),
            *instances.failures,
        ]
        if problems:
            raise Stop("\n  ".join([f"the rehearsal of {self.rehearsed.name} found:", *problems]), code=FAILED)

    def save_logs(self) -> None:
        """Write the logs of every machine that still runs, of its set-up and of Slurm, to the rehearsal's folder."""
        folder = self.rehearsed.home.root / "logs"
        folder.mkdir(exist_ok=True)
        calls = Counter((call.action, call.status) for call in self.cloud.moto.calls)
        (folder / "calls.txt").write_text("".join(f"{n:6} {s} {a}\n" for (a, s), n in sorted(calls.items())))
        for instance in self.cloud.instances.by_id.values():
            if instance.is_booted.is_set() and not instance.is_ending:
                with suppress(ResourceError):  # The machine may be what failed.
                    log = run_in(
                        self.cloud.instances.container(instance.id), f"cat {LOG} {_SLURM_LOGS} 2>/dev/null || true"
                    )
                    (folder / f"{instance.name}.log").write_text(log)

    def _on_controller(self, script: str) -> str:
        running = (i for i in self.cloud.instances.by_id.values() if i.name == "controller" and not i.is_ending)
        if (controller := next(running, None)) is None:
            raise Stop("there is no controller any more", code=FAILED)
        return run_in(self.cloud.instances.container(controller.id), script)

    def _muster(self, command: str, *options: str) -> None:
        """Run a command of muster against the simulated account and print its output; raise Stop if it fails."""
        self.cloud.timeline.record(_PHASE, command)
        line = [sys.executable, "-m", "muster.cli", command, "--stack", self.rehearsed.name, *options]
        env = self.rehearsed.environment(self.cloud.moto.environment(region_of(self.rehearsed.spec)), PLUGIN)
        code = run_command(line, env, self.rehearsed.home.repo, lambda text: self.console.say(f"  {text}"))
        if code:
            what = f"`muster {command}` failed in the rehearsal of {self.rehearsed.name}"
            raise Stop(what, f"see {self.rehearsed.home.root / 'logs'} for the machines' logs", FAILED)


def rehearse(stack: StackHome, options: RehearsalOptions, console: Console) -> Path:
    """Run a whole rehearsal and return the folder with its timeline; raise Stop where it fails."""
    with _lock(stack):
        rehearsed = prepare_stack(stack, list_used_ranges(), os.cpu_count() or 1, options.nodes)
        require_environment(rehearsed)
        for line in rehearsed.cuts:
            console.say(line)
        _run(rehearsed, options, console)
    return rehearsed.home.root


@contextmanager
def _lock(stack: StackHome) -> Iterator[None]:
    """Allow one rehearsal of a stack at a time; raise Stop if there is another."""
    folder = stack.home.root / "rehearsals"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{stack.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop(f"stack {stack.name} is being rehearsed already", "wait until that has ended") from None
        yield


def run_command(line: Sequence[str], env: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> int:
    """Run a command, pass on its output line by line, and return its exit code.

    It has a session of its own, so that Ctrl-C reaches only this process. An interrupt is passed on once, so that the
    command can end in order; if it does not end soon, it is killed.
    """
    process = subprocess.Popen(
        line, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout  # noqa: S101  # for the type checker: it is a pipe
    try:
        for text in process.stdout:
            say(text.rstrip())
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_INTERRUPT_TIMEOUT_S)
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


def choose_group(spec: ClusterSpec, nodes: int) -> tuple[str, int]:
    """Return the group with the most nodes, and how many of them a rehearsal's job uses: `nodes`, or all if fewer."""
    sizes = {name: group.count or group.max or 0 for name, group in spec.groups.items()}
    name = max(sizes, key=lambda group: sizes[group])
    return name, min(nodes, sizes[name])


def has_ended(state: str) -> bool:
    """Return whether a job's state in accounting is final."""
    return _END_STATES.match(state) is not None


def limit_job_s(speed: float) -> float:
    """Return the seconds after which a job is given up."""
    return _OWN_JOB_S + _AWS_JOB_S / speed


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Treat the signals by which a terminal or a service manager ends a process as Ctrl-C, so that cleanup runs.

    Only the first one counts: a second one must not end the cleanup.
    """

    def interrupt(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    # A signal that is ignored stays ignored: nohup.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _run(rehearsed: RehearsedStack, options: RehearsalOptions, console: Console) -> None:
    clock = Clock(options.seed, options.speed)
    timeline = Timeline(say=lambda event: console.say(_render_line(event)))
    began = time.monotonic()
    try:
        with interrupt_on_signals(), open_cloud(rehearsed, clock, timeline) as cloud:
            _run_and_save_logs(Rehearsal(rehearsed, cloud, console))
    finally:
        _write_timeline(rehearsed.home.root, timeline, time.monotonic() - began)


def _run_and_save_logs(rehearsal: Rehearsal) -> None:
    try:
        _run_steps(rehearsal)
    except (Stop, ResourceError, KeyboardInterrupt):
        rehearsal.save_logs()
        raise


def _run_steps(rehearsal: Rehearsal) -> None:
    rehearsal.up()
    if line := report_idle_cost(rehearsal.cloud.instances, region_of(rehearsal.rehearsed.spec)):
        rehearsal.console.say(line)
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    if nodes:
        rehearsal.cloud.timeline.record(_PHASE, "job")
        rehearsal.console.say(f"the job ran on {', '.join(sorted(rehearsal.run_job(group, nodes).split()))}")
    rehearsal.teardown()
    rehearsal.check()
    rehearsal.cloud.timeline.record(_PHASE, "done")


def _write_timeline(folder: Path, timeline: Timeline, end_s: float) -> None:
    (folder / "timeline.txt").write_text(render_text(timeline.events))
    (folder / "timeline.svg").write_text(render_picture(timeline.events, end_s))


def _render_line(event: Event) -> str:
    return f"{event.at_s:7.1f} s  {event.subject}: {event.what}"
