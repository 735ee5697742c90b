"""A machine for the journal: a folder on a real filesystem, and stand-ins for the programs of the system."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bootstrap.changes import SCRIPT, parse_restorations

ORIGINAL = "the owner's setting\n"
# Units are active if a file of their name exists, and do not accept their settings if there is `rejects`; accounts are
# lines of the machine's passwd; packages are lines of `name<TAB>version<TAB>state`. apt-get announces what is in
# `announces`, and removes packages unless there is `locked`.
PROGRAMS = {
    "systemctl": """case $* in
  "-q is-active "*) test -e "$STAGE/active/$3" ;;
  "is-active "*) if [ -e "$STAGE/active/$2" ]; then echo active; else echo inactive; exit 3; fi ;;
  "stop "*) rm "$STAGE/active/$2" ;;
  "reload-or-restart "*)
    if [ -e "$STAGE/rejects" ]; then echo "$2: bad settings" >&2; exit 1; fi
    if [ "$2" = ssh ]; then echo 4711 >"$MUSTER_SSHD_PID"; fi ;;
  "start systemd-user-sessions") rm -f "$MUSTER_NOLOGIN" ;;
esac""",
    "getent": 'grep "^$2:" "$STAGE/../root/etc/passwd"',
    "userdel": 'sed -i "/^$1:/d" "$STAGE/../root/etc/passwd"',
    "pkill": "exit 1",
    "dpkg": 'case $1 in --audit) cat "$STAGE/broken" 2>/dev/null || true ;; esac',
    "dpkg-query": """case $* in
  *Status-Status*) awk -F '\\t' -v OFS='\\t' '{ print $3, $1, $2 }' "$STAGE/packages" ;;
  *) shift $(($# - 1)); awk -F '\\t' -v name="$1" '$1 == name { printf "%s", $2 }' "$STAGE/packages" ;;
esac""",
    "apt-get": """case $* in
  "-s install "*) cat "$STAGE/announces" ;;
  "-s purge "*)
    shift 2
    for name in "$@"; do
      echo "Purg $name [1]"
      sed -n "s/^$name needed by /Remv /p" "$STAGE/needs" 2>/dev/null || true
    done ;;
  *purge*)
    if [ -e "$STAGE/locked" ]; then echo "E: Could not get lock /var/lib/dpkg/lock-frontend." >&2; exit 100; fi
    while [ "$1" != purge ]; do shift; done
    shift
    for name in "$@"; do sed -i "/^$name\t/d" "$STAGE/packages"; done ;;
esac""",
}


@dataclass(frozen=True)
class Machine:
    """A folder with the journal's record beside it."""

    root: Path
    record: Path
    backups: Path
    stage: Path
    """Folder with the state of the stand-ins."""

    def path(self, name: str) -> Path:
        return self.root / name

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MUSTER_RECORD": str(self.record),
            "MUSTER_BACKUPS": str(self.backups),
            "MUSTER_NOLOGIN": str(self.stage / "nologin"),
            "MUSTER_SSHD_PID": str(self.stage / "sshd.pid"),
            "STAGE": str(self.stage),
            "PATH": f"{self.stage}/bin:{os.environ['PATH']}",
        }

    def run(self, *arguments: str) -> str:
        done = self.start(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", SCRIPT, "journal", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def change(self, name: str, content: str | None, kind: str = "file") -> None:
        """Write or remove a file as an action does."""
        subject = f"{kind}:{self.path(name)}"
        self.run("before", subject)
        if content is None:
            self.path(name).unlink()
        else:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).write_text(content)
        self.run("after", subject)

    def install(self, announced: str, *packages: str) -> None:
        """Install packages as an action does; `announced` is what apt-get says before."""
        (self.stage / "announces").write_text(announced)
        self.run("before", "packages:")
        self.run("installs", "anything")
        self.add_packages(*packages)
        self.run("after", "packages:")

    def add_packages(self, *packages: str) -> None:
        with (self.stage / "packages").open("a") as listed:
            listed.writelines(f"{package}\t1\tinstalled\n" for package in packages)

    def list_packages(self) -> list[str]:
        return [line.split("\t")[0] for line in (self.stage / "packages").read_text().splitlines()]

    def activate(self, unit: str) -> None:
        (self.stage / "active" / unit).touch()

    def list_calls(self, program: str) -> list[str]:
        """Return the arguments of each call of a program."""
        calls = (self.stage / "calls").read_text().splitlines() if (self.stage / "calls").exists() else []
        return [call.removeprefix(f"{program} ") for call in calls if call.startswith(f"{program} ")]

    def restore(self) -> dict[str, str]:
        """Restore; return the outcome by path below the root."""
        restored = list(parse_restorations(self.run("restore")))
        return {entry.subject.removeprefix(f"{self.root}/"): entry.outcome for entry in restored}

    def backup(self, name: str) -> Path:
        """Return where a file of the machine is among the backups."""
        return Path(f"{self.backups}{self.path(name)}")

    def snapshot(self) -> dict[str, tuple[int, str]]:
        """Return mode and content, or target, of everything in the folder."""
        return {
            path.relative_to(self.root).as_posix(): (
                path.lstat().st_mode,
                os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "",
            )
            for path in sorted(self.root.rglob("*"))
        }


def create_machine(tmp_path: Path) -> Machine:
    """Return a machine with a file and a link of its owner."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/owned.conf").write_text(ORIGINAL)
    (root / "etc/owned.conf").chmod(0o640)
    (root / "etc/link").symlink_to("owned.conf")
    stage = tmp_path / "stage"
    (stage / "bin").mkdir(parents=True)
    (stage / "active").mkdir()
    (stage / "packages").write_text("base\t1\tinstalled\n")
    for name, script in PROGRAMS.items():
        program = stage / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$STAGE/calls"\n{script}\n')
        program.chmod(0o755)
    return Machine(root, tmp_path / "record", tmp_path / "backups", stage)
