"""This node as slurmctld sees it: drain it, resume it or say why it stays in service, and remember what was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from slurm.control import nodes
from slurm.health import maintenance
from slurm.health.check import Expected, HealthProblem, Remedy
from slurm.health.drain import PREFIX, Service, decide, decide_drain, describe_held
from slurm.health.registry import CHECKS
from slurm.health.remedy import COMMANDS, Attempts, choose_remedy, list_failed, select_checks_of

COMMAND_TIMEOUT_S = 10.0
# slurmctld's times have whole seconds: after this, all drains of the same second are listed.
SETTLE_S = 2.0

Outcome = Literal["drained", "held", "left"]
"""The node is drained for its problems, stays in service although it has some, or was left as it is."""


class OwnNode:
    """The node on which this program runs; `state` is the folder in which it remembers what it did."""

    def __init__(self, expected: Expected, state: Path) -> None:
        self.name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self._expected = expected
        self._rounds = state / "health-rounds"
        self._comment = state / "health-comment"
        self._remedies = state / "health-remedies"

    @property
    def was_changed(self) -> bool:
        """Whether these checks have drained the node or written its comment, and not undone it yet."""
        return self._rounds.exists() or self._comment.exists()

    def is_in_maintenance(self) -> bool:
        """Return whether the node is idle and in a maintenance reservation."""
        return self._read_listed().state == maintenance.STATE

    def act(self, problems: Sequence[HealthProblem]) -> Outcome:
        """Drain or resume the node as its problems require, within the group's limit on drains."""
        listed = self._read_listed()
        service = Service(listed.drained, listed.reason)
        checks, attempts, now = select_checks_of(problems, CHECKS), self._read_attempts(), time.time()
        decision = decide(problems, service, self._read_good_rounds(), list_failed(checks, attempts, now))
        held = decision.state == "drain" and not self._drain(service, decision.reason)
        if decision.state == "resume":
            self._update("resume")
        self.save_good_rounds(None if held else decision.good_rounds)
        self._write_comment(describe_held(problems, over_cap=held))
        if held:
            return "held"
        # Drained by an earlier round, and without jobs since: a person's drain has no reason here.
        if service.drained and decision.reason and listed.state == "drained":
            self._try_remedy(choose_remedy(checks, attempts, now), attempts, now)
        return "drained" if decision.reason else "left"

    def note_boot(self) -> None:
        """Remember that the node has booted since a remedy required it."""
        attempts = self._read_attempts()
        if "reboot" in attempts and not attempts["reboot"].get("booted"):
            self._save_attempts({**attempts, "reboot": {**attempts["reboot"], "booted": True}})

    def save_good_rounds(self, good_rounds: int | None) -> None:
        """Remember how many rounds in a row had no problem; None if these checks have not drained the node."""
        if good_rounds is None:
            self._rounds.unlink(missing_ok=True)
        else:
            self._rounds.parent.mkdir(parents=True, exist_ok=True)
            self._rounds.write_text(str(good_rounds), encoding="ascii")

    def _drain(self, service: Service, reason: str) -> bool:
        """Drain the node and return whether it stays so; resume it if too many of its group are drained."""
        is_new = not (service.drained and service.reason.startswith(PREFIX))
        if is_new and not self._may_be_drained():
            # Slurm drains a node by itself if its prolog fails and could not ask.
            if service.drained:
                self._update("resume")
            return False
        self._update("drain", reason)
        if is_new and self._expected.group:
            time.sleep(SETTLE_S)
            # Meanwhile a person may have drained it for another reason.
            if not self._may_be_drained():
                listed = self._read_listed()
                if listed.drained and listed.reason == reason:
                    self._update("resume")
                    return False
        return True

    def _try_remedy(self, remedy: Remedy | None, attempts: Attempts, now: float) -> None:
        if remedy is None:
            return
        print(f"health: trying a {remedy}", file=sys.stderr, flush=True)
        # Saved first: a reboot may end this program.
        self._save_attempts({**attempts, remedy: {"at": now}})
        self._run(COMMANDS[remedy])

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
        group = nodes.parse_group(self._run(nodes.list_group(self._expected.group)))
        return decide_drain(self.name, group, self._expected.max_drained_percent)

    def _read_listed(self) -> nodes.ListedNode:
        listed = nodes.parse_listed(self._run(nodes.list_node(self.name)))
        if not listed:
            raise LookupError(f"slurmctld does not know the node {self.name}")
        return listed[0]

    def _update(self, state: str, reason: str = "") -> None:
        self._run(nodes.update_nodes(self.name, state, reason))

    def _write_comment(self, comment: str) -> None:
        """Show on the node why it stays in service; it is removed once that is over."""
        before = self._comment.read_text(encoding="utf-8") if self._comment.exists() else ""
        if comment == before:
            return
        self._run(nodes.set_comment(self.name, comment))
        if comment:
            self._comment.parent.mkdir(parents=True, exist_ok=True)
            self._comment.write_text(comment, encoding="utf-8")
        else:
            self._comment.unlink()

    def _read_good_rounds(self) -> int:
        return int(self._rounds.read_text(encoding="ascii")) if self._rounds.exists() else 0

    @staticmethod
    def _run(command: Sequence[str]) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        return done.stdout
