"""This node as slurmctld sees it: drain it, resume it or say why it stays in service, and remember what was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from slurm.control import nodes, reservations
from slurm.health import lost_jobs, maintenance, stray_jobs, unkillable
from slurm.health.check import Expected, HealthProblem, Remedy
from slurm.health.drain import (
    DUPLICATE_JOB,
    KILL_FAILED,
    PREFIX,
    SLURM_REASONS,
    Service,
    decide,
    decide_drain,
    describe_held,
)
from slurm.health.recheck import Recheck, list_beyond_rounds, list_pending
from slurm.health.recheck import render_start as render_recheck
from slurm.health.registry import CHECKS
from slurm.health.remedy import COMMANDS, Attempts, choose_remedy, list_failed, select_checks_of

COMMAND_TIMEOUT_S = 10.0
ACT_LIMIT_S = 15.0
"""Time for all commands of a round together: with the slowest check, it ends before slurmd kills the program."""
# slurmctld's times have whole seconds: after this, all drains of the same second are listed.
SETTLE_S = 2.0

Outcome = Literal["drained", "held", "left"]
"""The node is drained for its problems, stays in service although it has some, or was left as it is."""


class OwnNode:
    """The node on which this program runs; `state` is the folder in which it remembers what it did."""

    def __init__(self, expected: Expected, state: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self.name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self._expected = expected
        self._state = state
        self._rounds = state / "health-rounds"
        self._comment = state / "health-comment"
        self._remedies = state / "health-remedies"
        self._recheck = state / "health-recheck"
        self._kill_failed = state / "health-kill-failed"
        self._sleep = sleep
        self._deadline: float | None = None

    @property
    def was_changed(self) -> bool:
        """Whether these checks have drained the node or written its comment, and not undone it yet."""
        return self._rounds.exists() or self._comment.exists()

    def is_in_maintenance(self) -> bool:
        """Return whether the node is idle and in a maintenance reservation."""
        return self._read_listed().state == maintenance.STATE

    def take_over_drain(self) -> None:
        """Let the rounds end a drain that Slurm set itself; drains of people stay theirs."""
        listed = self._read_listed()
        if listed.drained and listed.reason.startswith(SLURM_REASONS):
            self.save_good_rounds(0)

    def act(self, problems: Sequence[HealthProblem]) -> Outcome:
        """Drain or resume the node as its problems require, within the group's limit on drains."""
        listed = self._read_listed()
        service = Service(listed.drained, listed.reason)
        if service.drained and service.reason.startswith(DUPLICATE_JOB):
            strays = stray_jobs.list_strays(self.name, self.run)
            if strays:
                with suppress(OSError):
                    stray_jobs.end_strays_in_round(strays, self.run, self._state, time.time())
                self.save_good_rounds(0)
                return "drained"
        attempts, recheck, now = self._read_attempts(), self._read_recheck(), time.time()
        if any(problem.check in list_beyond_rounds() for problem in problems):
            recheck = Recheck(now, passed=False)
            with suppress(OSError):
                self._write_recheck(recheck)
        is_pending = service.drained and not recheck.passed
        pending = list_pending(service.reason, problems, self._expected) if is_pending else []
        checks_again = bool(pending) and not select_checks_of(problems, CHECKS)
        is_due, is_running = recheck.is_due(attempts, now), recheck.is_running(now)
        # First in the reason, which may be cut off: no round would add them again.
        problems = [*pending, *problems]
        checks = select_checks_of(problems, CHECKS)
        tried = [] if checks_again and (is_due or is_running) else list_failed(checks, attempts, now)
        decision = decide(problems, service, self._read_good_rounds(), tried)
        if decision.state == "drain":
            # Saved first: if this program is killed after the drain, the next rounds still look at the node. A full
            # disk does not prevent the drain; it leaves an empty file.
            with suppress(OSError):
                self.save_good_rounds(0)
        if self._must_stay_drained(service, problems):
            if decision.state == "drain":
                self._update("drain", decision.reason)
            held = False
        else:
            is_changed = decision.state == "drain"
            held = bool(decision.reason) and not self._drain(service, decision.reason, is_changed=is_changed)
        if decision.state == "resume":
            self._update("resume")
        self.save_good_rounds(None if held else decision.good_rounds)
        self._write_comment(describe_held(problems, over_cap=held))
        if held:
            return "held"
        # Drained by an earlier round, and without jobs since: a person's drain has no reason here.
        if service.drained and decision.reason and listed.state == "drained":
            if checks_again and is_due:
                self._start_recheck([problem.check for problem in pending], now)
            elif not (checks_again and is_running):
                self._try_remedy(choose_remedy(checks, attempts, now), attempts, now)
        return "drained" if decision.reason else "left"

    def note_boot(self) -> None:
        """Remember that the node has booted since a remedy required it."""
        attempts = self._read_attempts()
        if "reboot" in attempts and not attempts["reboot"].get("booted"):
            self._save_attempts({**attempts, "reboot": {**attempts["reboot"], "booted": True}})

    def end_lost_jobs(self) -> None:
        """Let slurmctld end the jobs that it has here if the boot has ended them; a drained node keeps its reason.

        slurmctld misses a node only after `slurmd_timeout_s`. If it is back sooner, slurmctld ends a job whose batch
        script is gone only when the node registers BatchStartTimeout after the job's start, perhaps after 20 pings.
        """
        listed = self._read_listed()
        if not lost_jobs.may_have_jobs(listed.state):
            return
        lost = lost_jobs.list_lost(self.name, self.run)
        if lost:
            print(
                f"health: this node has booted, which ended {stray_jobs.name_jobs(lost)}", file=sys.stderr, flush=True
            )
            self._update("down", listed.reason if listed.drained else lost_jobs.REASON)

    def read_maintenance_end(self) -> float | None:
        """Return when the node's maintenance reservation ends, in seconds since 1970; None if it is in none."""
        for hostlist, end in reservations.parse_reservations(self.run(reservations.SHOW_RESERVATIONS)):
            if self.name in self.run(reservations.show_hosts(hostlist)).split():
                return end
        return None

    def save_recheck(self, *, passed: bool) -> None:
        """Remember how the checks ended that were repeated after a remedy."""
        self._write_recheck(Recheck(self._read_recheck().at, passed))

    def run(self, command: Sequence[str]) -> str:
        """Run a command within the time that is left to this program, and return its output."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + ACT_LIMIT_S
        limit_s = max(0.0, min(COMMAND_TIMEOUT_S, self._deadline - now))
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s).stdout

    def save_good_rounds(self, good_rounds: int | None) -> None:
        """Remember how many rounds in a row had no problem; None if these checks have not drained the node."""
        if good_rounds is None:
            self._rounds.unlink(missing_ok=True)
        else:
            self._rounds.parent.mkdir(parents=True, exist_ok=True)
            self._rounds.write_text(str(good_rounds), encoding="ascii")

    def _drain(self, service: Service, reason: str, *, is_changed: bool) -> bool:
        """Drain the node and return whether it stays so; resume it if too many of its group are drained."""
        if not self._may_be_drained():
            # Slurm drains a node by itself if its prolog fails and could not ask; and an earlier round may have been
            # killed before it looked again.
            if service.drained:
                self._update("resume")
            return False
        if is_changed:
            self._update("drain", reason)
        is_new = not (service.drained and service.reason.startswith(PREFIX))
        if is_new and self._expected.group:
            self._sleep(SETTLE_S)
            # Meanwhile a person may have drained it for another reason.
            if not self._may_be_drained():
                listed = self._read_listed()
                if listed.drained and listed.reason == reason:
                    self._update("resume")
                    return False
        return True

    def _must_stay_drained(self, service: Service, problems: Sequence[HealthProblem]) -> bool:
        """Return whether Slurm drained the node for a step that still hangs: then no limit on drains may resume it.

        It is remembered, because the drain gets the reason of the checks.
        """
        hangs = service.drained and any(problem.check == unkillable.CHECK.name for problem in problems)
        is_slurms = hangs and service.reason.startswith(KILL_FAILED)
        if not hangs:
            self._kill_failed.unlink(missing_ok=True)
        elif is_slurms:
            with suppress(OSError):
                self._kill_failed.touch()
        return is_slurms or (hangs and service.ours and self._kill_failed.exists())

    def _try_remedy(self, remedy: Remedy | None, attempts: Attempts, now: float) -> None:
        if remedy is None:
            return
        print(f"health: trying a {remedy}", file=sys.stderr, flush=True)
        # Saved first: a reboot may end this program.
        self._save_attempts({**attempts, remedy: {"at": now}})
        self.run(COMMANDS[remedy])

    def _start_recheck(self, names: Sequence[str], now: float) -> None:
        print(f"health: repeating {', '.join(dict.fromkeys(names))}", file=sys.stderr, flush=True)
        self._write_recheck(Recheck(now, passed=None))
        self.run(render_recheck(self.name, names))

    def _read_recheck(self) -> Recheck:
        try:
            return Recheck(**json.loads(self._recheck.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Recheck()

    def _write_recheck(self, recheck: Recheck) -> None:
        self._recheck.parent.mkdir(parents=True, exist_ok=True)
        self._recheck.write_text(json.dumps({"at": recheck.at, "passed": recheck.passed}), encoding="utf-8")

    def _read_attempts(self) -> Attempts:
        try:
            attempts: Attempts = json.loads(self._remedies.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return attempts

    def _save_attempts(self, attempts: Attempts) -> None:
        self._remedies.parent.mkdir(parents=True, exist_ok=True)
        self._remedies.write_text(json.dumps(attempts), encoding="utf-8")

    def _may_be_drained(self) -> bool:
        if not self._expected.group:
            return True
        group = nodes.parse_group(self.run(nodes.list_group(self._expected.group)))
        return decide_drain(self.name, group, self._expected.max_drained_percent)

    def _read_listed(self) -> nodes.ListedNode:
        listed = nodes.parse_listed(self.run(nodes.list_node(self.name)))
        if not listed:
            raise LookupError(f"slurmctld does not know the node {self.name}")
        return listed[0]

    def _update(self, state: str, reason: str = "") -> None:
        self.run(nodes.update_nodes(self.name, state, reason))

    def _write_comment(self, comment: str) -> None:
        """Show on the node why it stays in service; it is removed once that is over."""
        before = self._comment.read_text(encoding="utf-8") if self._comment.exists() else ""
        if comment == before:
            return
        self.run(nodes.set_comment(self.name, comment))
        if comment:
            self._comment.parent.mkdir(parents=True, exist_ok=True)
            self._comment.write_text(comment, encoding="utf-8")
        else:
            self._comment.unlink()

    def _read_good_rounds(self) -> int:
        try:
            return int(self._rounds.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0
