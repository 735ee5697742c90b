"""Actions: what a step wants done on a node, as shell text and the bytes it reads. Several travel in one round trip."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from bootstrap.facts.model import Facts, FileFact

MARKERS = "/var/lib/muster"
DONE = "@@muster-done"


@dataclass(frozen=True)
class Action:
    title: str
    """In words, as drift and progress show it."""
    script: str = field(repr=False)
    data: bytes = field(default=b"", repr=False)
    """Read by the script from stdin, all of it and nothing more."""
    timeout: float = 30.0
    log: str = ""
    fix: str = ""
    slow: bool = False
    """Takes minutes: travels alone, and each line it prints is progress."""


def write(facts: Facts, path: str, content: str | bytes, mode: int = 0o644, owner: str = "root:root") -> list[Action]:
    """Writes a file where it differs in content, mode or owner."""
    data = content.encode() if isinstance(content, str) else content
    if facts.files.get(path) == FileFact(sha256(data).hexdigest(), mode, owner):
        return []
    folder, quoted, new = (shlex.quote(p) for p in (path.rpartition("/")[0], path, f"{path}.muster-new"))
    # Two processes for the usual file: with 34 nodes on two cores the forks are what takes time.
    script = f"[ -d {folder} ] || mkdir -p {folder}\n(umask {_umask(mode):03o}; head -c {len(data)} > {new})\n"
    if mode not in (0o644, 0o600):
        script += f"chmod {mode:o} {new}\n"
    if owner != "root:root":
        script += f"chown {owner} {new}\n"
    script += f"mv -f {new} {quoted}"
    return [Action(f"write {path}", script, data, fix=f"free space on the disk that holds {path}, then run again")]


def _umask(mode: int) -> int:
    return 0o077 if mode & 0o077 == 0 else 0o022


def remove(facts: Facts, path: str) -> list[Action]:
    return [Action(f"remove {path}", f"rm -f {shlex.quote(path)}")] if path in facts.files else []


def mark(name: str, digest: str) -> str:
    """Shell text that remembers what a daemon has just been told; run only after it was."""
    return f"mkdir -p {MARKERS} && echo {digest} > {MARKERS}/{name}"


def digest(*parts: str | bytes) -> str:
    total = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def enable(unit: str) -> str:
    """What `systemctl enable` comes down to, without its detour over SysV scripts and a reload for each unit."""
    wants = "/etc/systemd/system/multi-user.target.wants"
    found = f"$(ls /etc/systemd/system/{unit}.service /usr/lib/systemd/system/{unit}.service 2>/dev/null | head -n 1)"
    return f'mkdir -p {wants} && ln -sfn "{found}" {wants}/{unit}.service'


def batch(actions: Iterable[Action]) -> tuple[str, bytes]:
    """One script and its stdin for many actions; each runs up to its first error and is ended by a marker."""
    scripts, data = [], b""
    for number, action in enumerate(actions):
        stdin = "" if action.data else " </dev/null"
        # Not `( … ) || …`: a shell ignores `set -e` inside a condition.
        scripts.append(
            f"( set -e\n{action.script}\n){stdin}\ncode=$?\n"
            f"if [ $code != 0 ]; then exit $code; fi; echo; echo {DONE} {number}"
        )
        data += action.data
    return "\n".join(scripts), data
