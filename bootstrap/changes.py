"""What an action changes on a machine that its owner gets back, and the journal on the machine that records it.

A machine that exists before the cluster must be as it was afterwards. So every action that may run on one declares its
`Changes`. Before the action, `scripts/journal.sh` on the machine records what was there; after it, what muster left.
Release runs `journal restore`, which puts back what was there, except for what somebody has changed since, and prints a
line per subject for the receipt. Nodes that muster creates have no journal: they are removed as a whole.

The shared filesystem is not recorded: homes, jobs and environments belong to the users and outlive the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

RECORD = "/var/lib/muster/record"
JOURNAL = f"{RECORD}/journal"
"""Where the script is on the machine."""
_SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = (_SCRIPTS / "journal.sh").read_text().replace("# @RESTORE@", (_SCRIPTS / "journal-restore.sh").read_text())
WANTS = "/etc/systemd/system/multi-user.target.wants"
# With the copies that useradd leaves of the version before.
ACCOUNT_FILES = tuple(
    f"/etc/{name}{suffix}"
    for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")
    for suffix in ("", "-")
)
Outcome = Literal["restored", "removed", "stopped", "undone", "left"]


@dataclass(frozen=True)
class Tree:
    """A folder whose content a daemon changes."""

    path: str
    units: tuple[str, ...]
    """Units that may be this daemon: while one of them is active before muster's is, the machine is refused."""


@dataclass(frozen=True)
class Changes:
    """What an action changes outside the shared filesystem and muster's own markers; nothing, if all is empty."""

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders that may be created, those above before those in them; they are removed if they are empty."""
    access: tuple[str, ...] = ()
    """Files that decide who can log in. They are restored even if somebody has changed them since."""
    blocks: tuple[str, ...] = ()
    """Files in which only the lines between muster's markers belong to muster."""
    trees: tuple[Tree, ...] = ()
    units: tuple[str, ...] = ()
    """Systemd units that are started, restarted or reloaded."""
    accounts: tuple[str, ...] = ()
    """Users that are added."""
    account_files: bool = False
    """Whether the files of accounts change."""
    packages: bool = False
    """Whether packages are installed, whose scripts may also add accounts."""
    undo: str = ""
    """Command that ends an effect that is in no file."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The arguments of the journal."""
        return (
            *(f"unit:{name}" for name in self.units),
            *(("packages:",) if self.packages else ()),
            *(f"account:{name}" for name in self.accounts),
            *(f"registry:{path}" for path in ACCOUNT_FILES if self.account_files or self.accounts or self.packages),
            *(f"folder:{path}" for path in self.folders),
            *(f"file:{path}" for path in self.files),
            *(f"access:{path}" for path in self.access),
            *(f"block:{path}" for path in self.blocks),
            *(f"tree:{','.join(tree.units)}:{tree.path}" for tree in self.trees),
            *((f"undo:{self.undo}",) if self.undo else ()),
        )


SLURM_STATE = Tree("/var/lib/slurm", ("slurmctld", "slurmdbd", "slurmd"))
DATABASE_STATE = Tree("/var/lib/mysql", ("mariadb", "mysql"))
"""The folders of the daemons' state, which packages create and do not remove."""
UNRECORDED = Changes()
"""Changes only the shared filesystem, muster's markers, or what another action of the same step has recorded."""


def change_files(*paths: str) -> Changes:
    """Return the changes of an action that writes or removes files."""
    return Changes(files=paths)


def change_units(*units: str, trees: tuple[Tree, ...] = ()) -> Changes:
    """Return the changes of an action that enables and starts units."""
    return Changes(files=tuple(f"{WANTS}/{unit}.service" for unit in units), units=units, trees=trees)


def journal(script: str, changes: Changes) -> str:
    """Return a script that records what another one changes, before and after it."""
    if not changes.subjects:
        return script
    subjects = shlex.join(changes.subjects)
    # In its own subshell: the script may end early, or have a trap of its own.
    return f"{JOURNAL} before {subjects} </dev/null\n( set -e\n{script}\n)\n{JOURNAL} after {subjects} </dev/null"


@dataclass(frozen=True)
class Restoration:
    """What became of one subject when a machine was released."""

    outcome: Outcome
    kind: str
    subject: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} {self.kind} {self.subject}" + (f" ({self.remark})" if self.remark else "")


def parse_restorations(output: str) -> Iterator[Restoration]:
    """Yield the lines that `journal restore` has printed."""
    for line in output.splitlines():
        outcome, _, fields = line.partition("\t")
        if outcome in get_args(Outcome) and fields.count("\t") == 2:  # noqa: PLR2004  # kind, subject, remark
            yield Restoration(outcome, *fields.split("\t"))  # type: ignore[arg-type]  # compared with the allowed ones
