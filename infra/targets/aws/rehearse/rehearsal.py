"""Rehearse a stack: `up`, a job across nodes, and `teardown`, with the real engine and the order and delays of AWS."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from infra.engine.stop import FAILED, Stop
from infra.home import StackHome, private_folder
from infra.resources.error import ResourceError
from infra.targets.aws.build.reports import LOG
from infra.targets.aws.images.baked_images import list_snapshots
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.aws.rehearse.bill import compute_bill
from infra.targets.aws.rehearse.billed_prices import list_prices
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.judge import MISSING
from infra.targets.aws.rehearse.plugin import PLUGIN
from infra.targets.aws.rehearse.rehearsed_slurm import RehearsedSlurm
from infra.targets.aws.rehearse.rehearsed_stack import RehearsedStack, label_rehearsal, prepare_stack
from infra.targets.aws.rehearse.simulated_cloud import SimulatedCloud, open_cloud, require_environment
from infra.targets.aws.rehearse.timeline import PHASE, Event, Timeline
from infra.targets.aws.rehearse.timeline_picture import write_timeline
from infra.targets.aws.rehearse.vpc_network import claim_network
from infra.targets.aws.spec import region_of
from infra.targets.mixins import RehearsalOptions
from infra.targets.target import Console

_INTERRUPT_TIMEOUT_S = 20.0
# Machines take up to a minute to shut down.
_END_TIMEOUT_S = 120.0
_SLURM_LOGS = "/var/log/slurm/*.log"


@dataclass
class Rehearsal:
    """A rehearsal under way."""

    rehearsed: RehearsedStack
    cloud: SimulatedCloud
    console: Console
    denials_before_teardown: int = 0
    own: set[str] = field(default_factory=set)
    """What a scenario has created for the user of the stack: `teardown` must leave it."""

    def up(self) -> None:
        self._muster("up")

    def refresh_images(self) -> None:
        self._muster("image refresh")

    def remove_image(self, image: str) -> None:
        """Remove an image that machines run from, which muster must refuse; raise Stop if it does not."""
        code, output = self._run_muster("image remove", image)
        if not code or "is in use by" not in output:
            raise Stop(f"`muster image remove` did not refuse {image}, from which machines run", code=FAILED)
        ec2 = self.cloud.moto.client("ec2", region_of(self.rehearsed.spec))
        (raw,) = ec2.describe_images(ImageIds=[image])["Images"]
        ec2.deregister_image(ImageId=image)
        for snapshot in list_snapshots(raw):
            ec2.delete_snapshot(SnapshotId=snapshot)

    def teardown(self) -> None:
        self.denials_before_teardown = len(self.cloud.denials)
        self._muster("teardown", "--yes", "--force")

    def upgrade(self, *options: str) -> None:
        self._muster("upgrade", *options)

    def read_logs(self, node: str, machine: str) -> str:
        """Return what `muster logs` prints of a node's machine; raise Stop if it fails."""
        code, output = self._run_muster(f"logs {node}", "--machine", machine, is_shown=False)
        if code:
            raise Stop(f"`muster logs {node} --machine {machine}` failed: {output}", code=FAILED)
        return output

    def fail_up(self, *texts: str) -> None:
        """Run `up`, which must fail, print each of these texts, and say how to continue."""
        code, output = self._run_muster("up")
        missing = [text for text in texts if text not in output]
        if not code or missing:
            problem = f"its output has no {missing[0]!r}" if code else "it succeeded"
            raise Stop(f"`muster up` should have failed with {', '.join(map(repr, texts))}, but {problem}", code=FAILED)

    def run_job(self, group: str, nodes: int) -> str:
        """Submit a job across nodes, wait until it has ended, and return its output; raise Stop if it failed."""
        return self.slurm.wait_for_end(self.slurm.submit(group, nodes, "hostname"))

    @property
    def slurm(self) -> RehearsedSlurm:
        return RehearsedSlurm(next(iter(self.rehearsed.spec.users)), self.cloud.instances)

    def list_resources(self) -> set[str]:
        """Return everything that the account has, whatever its tags."""
        return list_resources(self.cloud)

    def check(self, before: set[str]) -> None:
        """Raise Stop if something was left, a call was denied, or this machine rather than AWS failed.

        `before` is what the account had when the rehearsal began.
        """
        instances = self.cloud.instances
        instances.wait_for_ends(_END_TIMEOUT_S)
        left = [instance.name for instance in instances.by_id.values() if instance.raw._state.name != "terminated"]
        problems = [
            *(f"machine {name} is left after teardown" for name in left),
            *(f"{what} is left after teardown" for what in self._list_left(before | self.own)),
            *(f"{what} of the user is gone after teardown" for what in sorted(self.own - self.list_resources())),
            *self._check_receipt(),
            *dict.fromkeys(self._list_wrong_denials()),
            *instances.failures,
        ]
        if problems:
            raise Stop("\n  ".join([f"the rehearsal of {self.rehearsed.name} found:", *problems]), code=FAILED)

    def _list_left(self, before: set[str]) -> list[str]:
        """Return what was added to the account; with kept storage, only disks and addresses, which never stay."""
        if not any(entry.keep for entry in self.rehearsed.spec.storage.values()):
            return sorted(self.list_resources() - before)
        billed = (what for what in self.cloud.moto_account.list_billed() if what not in self.cloud.existing)
        return [what for what in billed if not what.startswith("filesystem ")]

    def _list_wrong_denials(self) -> list[str]:
        """Return the denials without those of machines that teardown found only after it had removed their role."""
        return [
            reason
            for number, reason in enumerate(self.cloud.denials)
            if number < self.denials_before_teardown or not reason.endswith(MISSING)
        ]

    def _check_receipt(self) -> list[str]:
        receipts = sorted((self.rehearsed.home.root / "receipts").glob("*.json"), key=lambda path: path.stat().st_mtime)
        if not receipts:
            return ["teardown wrote no receipt"]
        left = json.loads(receipts[-1].read_text())["left"]
        return [f"the receipt lists {format_count(left, 'resource')} as left"] if left else []

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

    def _muster(self, command: str, *options: str) -> None:
        """Run a command of muster; raise Stop if it fails."""
        code, _ = self._run_muster(command, *options)
        if code:
            what = f"`muster {command}` failed in the rehearsal of {self.rehearsed.name}"
            raise Stop(what, f"see {self.rehearsed.home.root / 'logs'} for the machines' logs", FAILED)

    def _run_muster(self, command: str, *options: str, is_shown: bool = True) -> tuple[int, str]:
        """Run a command of muster against the simulated account, print its output, and return its code and output."""
        self.cloud.timeline.record(PHASE, command)
        lines: list[str] = []

        def say(text: str) -> None:
            lines.append(text)
            if is_shown:
                self.console.say(f"  {text}")

        line = [sys.executable, "-m", "muster.cli", *command.split(), "--stack", self.rehearsed.name, *options]
        env = self.rehearsed.environment(self.cloud.moto.environment(region_of(self.rehearsed.spec)), PLUGIN)
        return run_command(line, env, self.rehearsed.home.repo, say), "\n".join(lines)


Steps = Callable[[Rehearsal], None]
"""What a rehearsal does between its begin and `teardown`."""


def rehearse(stack: StackHome, options: RehearsalOptions, console: Console, steps: Steps) -> Path:
    """Run a whole rehearsal and return the folder with its timeline; raise Stop where it fails."""
    with lock_rehearsal(stack), interrupt_on_signals(), claim_network(*label_rehearsal(stack)) as cidr:
        rehearsed = prepare_stack(stack, cidr, os.cpu_count() or 1, options.nodes)
        require_environment(rehearsed)
        for line in rehearsed.cuts:
            console.say(line)
        try:
            _run(rehearsed, options, console, steps)
        except (Stop, ResourceError):
            _keep_logs(rehearsed, stack.home.root / "rehearsals" / "failed", options)
            raise
    return rehearsed.home.root


@contextmanager
def lock_rehearsal(stack: StackHome) -> Iterator[None]:
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


def require_nodes(output: str, nodes: int) -> None:
    """Raise Stop if the output of a job, which prints its hosts, is not of so many nodes."""
    if len(set(output.split())) != nodes:
        raise Stop(
            f"the job should have run on {format_count(nodes, 'node')}, but printed {output.split()}", code=FAILED
        )


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


def _run(rehearsed: RehearsedStack, options: RehearsalOptions, console: Console, steps: Steps) -> None:
    timeline = Timeline(say=lambda event: console.say(_render_line(event)))
    clock = Clock(options.seed, options.speed, note=timeline.shorten)
    began, usd_per_hour = time.monotonic(), dict[str, float]()
    try:
        with open_cloud(rehearsed, clock, timeline) as cloud, _note_prices(rehearsed.spec, cloud, usd_per_hour):
            _run_and_save_logs(Rehearsal(rehearsed, cloud, console), steps)
    finally:
        end_s = time.monotonic() - began
        bill = compute_bill(timeline.events, usd_per_hour, timeline.shortened, options.speed, end_s)
        write_timeline(rehearsed.home.root, timeline.events, bill, end_s)


def _run_and_save_logs(rehearsal: Rehearsal, steps: Steps) -> None:
    try:
        before = rehearsal.list_resources()
        steps(rehearsal)
        rehearsal.teardown()
        rehearsal.check(before)
    except (Stop, ResourceError, KeyboardInterrupt):
        rehearsal.save_logs()
        raise
    rehearsal.cloud.timeline.record(PHASE, "done")


def _keep_logs(rehearsed: RehearsedStack, folder: Path, options: RehearsalOptions) -> None:
    """Copy what shows why a rehearsal failed: the next rehearsal of the stack begins with an empty folder."""
    target = folder / f"{rehearsed.name}-{options.scenario}-{options.seed}"
    shutil.rmtree(target, ignore_errors=True)
    private_folder(target)
    root = rehearsed.home.root
    for path in (*root.glob("timeline.*"), *root.glob("logs/*.log"), *root.glob(f"{rehearsed.name}/*.log")):
        shutil.copy(path, target)


@contextmanager
def _note_prices(spec: ClusterSpec, cloud: SimulatedCloud, usd_per_hour: dict[str, float]) -> Iterator[None]:
    """At the end, whatever happened, add what everything in the timeline costs per hour."""
    try:
        yield
    finally:
        usd_per_hour |= list_prices(spec, cloud.instances, cloud.timeline.events)


def _render_line(event: Event) -> str:
    return f"{event.at_s:7.1f} s  {event.subject}: {event.what}"
