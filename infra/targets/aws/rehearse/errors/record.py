"""The record of covered pairs: what rehearsals of a stack have covered, tonight and on other nights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from infra.home import StackHome, private_folder
from infra.targets.aws.rehearse.errors.pair import Outcome, Pair

_FIELDS = 5


@dataclass(frozen=True)
class Record:
    """A file with a line of JSON for each covered pair: day, command, site, code, outcome. Lines are only appended."""

    path: Path

    def read(self) -> dict[Pair, Outcome]:
        """Return the outcome of each recorded pair."""
        if not self.path.exists():
            return {}
        lines = (_parse(line) for line in self.path.read_text(errors="replace").splitlines())
        return dict(entry for entry in lines if entry)

    def add(self, outcomes: Mapping[Pair, Outcome]) -> None:
        """Append pairs. Those of earlier calls stay if this process is killed, also in the middle of a line."""
        if not outcomes:
            return
        day = datetime.now(UTC).date().isoformat()
        lines = [json.dumps([day, p.command, p.site, p.code, outcome]) for p, outcome in outcomes.items()]
        private_folder(self.path.parent)
        with self.path.open("a+b") as file:
            # A process that was killed may have left half a line.
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            begin = "" if file.read(1) in (b"", b"\n") else "\n"
            file.write((begin + "\n".join(lines) + "\n").encode())


def locate_record(stack: StackHome) -> Record:
    """Return the record of a stack, which stays when the next rehearsal begins."""
    return Record(stack.home.root / "rehearsals" / f"{stack.name}-errors-covered.jsonl")


def _parse(line: str) -> tuple[Pair, Outcome] | None:
    """Return the pair and the outcome of a line, or None of half a line."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, list) or len(fields) != _FIELDS or fields[-1] not in get_args(Outcome):
        return None
    _, command, site, code, outcome = fields
    return Pair(command, site, code), outcome
