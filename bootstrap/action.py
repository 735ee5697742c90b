"""Actions: the changes that a step makes on a node, as shell scripts and their input; several share a round trip."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from bootstrap.changes import JOURNAL, Changes, Tree, change_files, journal
from bootstrap.facts.model import Facts, FileFact
from bootstrap.package_archive import render_installation
from bootstrap.transport.base import require_size

MARKERS = "/var/lib/muster"
DONE = "@@muster-done"
INSTALL_TIMEOUT_S = 900.0
# By default `apt-get update` succeeds although it could not fetch a list, and the next installation fails instead.
# Without a timeout it fails at once while another program, such as unattended-upgrades, uses dpkg.
APT_GET = "apt-get -q -o APT::Update::Error-Mode=any -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300"
LISTS_FETCHED = "/run/muster/package-lists"
"""File whose time of change is when all package lists were last fetched."""
LISTS_MAX_AGE_MIN = 15
LISTS_LOCK = f"{LISTS_FETCHED}.lock"
"""File that is locked while lists are fetched; a cloud machine begins before set-up does."""
POLICY = "/usr/sbin/policy-rc.d"
"""Program that dpkg asks whether a package may start its daemon; a machine's owner may have one."""
POLICY_ASIDE = f"{POLICY}.muster-old"
# Starting a daemon that is not configured yet would block the installation. If an earlier attempt was killed, the file
# is still muster's, and the owner's is still aside.
KEEP_DAEMONS_STOPPED = f"""\
if [ -e {POLICY} ] && ! grep -qx '# muster' {POLICY}; then mv -f {POLICY} {POLICY_ASIDE}; fi
trap 'rm -f {POLICY}; if [ -e {POLICY_ASIDE} ]; then mv -f {POLICY_ASIDE} {POLICY}; fi' EXIT
printf '#!/bin/sh\\n# muster\\nexit 101\\n' > {POLICY}; chmod 755 {POLICY}
"""
# Several steps of a set-up need the lists, which take longer to fetch than many installations. They are fetched again
# if they are old, or if a source was added or removed since.
FETCH_LISTS = f"""\
mkdir -p {LISTS_FETCHED.rpartition("/")[0]}
exec 8>{LISTS_LOCK}
flock 8
if [ -z "$(find {LISTS_FETCHED} -mmin -{LISTS_MAX_AGE_MIN} 2>/dev/null)" ] ||
  [ -n "$(find /etc/apt/sources.list /etc/apt/sources.list.d -newer {LISTS_FETCHED} 2>/dev/null)" ]; then
  touch {LISTS_FETCHED}.new
  {APT_GET} update
  mv -f {LISTS_FETCHED}.new {LISTS_FETCHED}
fi
exec 8>&-
"""
# What user data, which has little space, does of this before anything else. If it fails, the step that needs lists
# repeats it.
LOCK_LISTS = f"exec 8>{LISTS_LOCK}; flock 8"
FETCH_LISTS_EARLY = f"""\
touch {LISTS_FETCHED}.new
apt-get -q -o APT::Update::Error-Mode=any update && mv {LISTS_FETCHED}.new {LISTS_FETCHED}
"""


@dataclass(frozen=True)
class Action:
    """One change on one node."""

    title: str
    """Description of the change for progress and drift reports."""
    script: str = field(repr=False)
    """POSIX shell, run as root with `set -e`."""
    data: bytes = field(default=b"", repr=False)
    """Standard input of the script, which must read exactly these bytes."""
    timeout: float = 30.0
    """Timeout in seconds."""
    log: str = ""
    """File or command on the node that shows more if the action fails."""
    fix: str = ""
    """How to fix a failure."""
    slow: bool = False
    """Whether the action takes minutes: it then gets its own round trip, and each line it prints is reported."""
    changes: Changes | None = None
    """What the journal of an adopted machine records; None if the action never runs on one."""


def write_file(
    facts: Facts, path: str, content: str | bytes, mode: int = 0o644, owner: str = "root:root"
) -> list[Action]:
    """Return the action that writes a file, or nothing if content, mode and owner are already right."""
    data = content.encode() if isinstance(content, str) else content
    if facts.files.get(path) == FileFact(sha256(data).hexdigest(), mode, owner):
        return []
    folder, quoted, new = (shlex.quote(p) for p in (path.rpartition("/")[0], path, f"{path}.muster-new"))
    # Most files need at most three processes: with 34 nodes on two cores, forks take most of the time.
    script = f"[ -d {folder} ] || mkdir -p {folder}\n(umask {_umask(mode):03o}; head -c {len(data)} > {new})\n"
    script += f"{require_size(new, len(data))}\n"
    if mode not in (0o644, 0o600):
        script += f"chmod {mode:o} {new}\n"
    if owner != "root:root":
        script += f"chown {owner} {new}\n"
    script += f"mv -f {new} {quoted}"
    fix = f"free space on the disk that holds {path}, then run again"
    return [Action(f"write {path}", script, data, fix=fix, changes=change_files(path))]


def write_access_file(facts: Facts, path: str, content: str) -> list[Action]:
    """Return the action that writes a file on which logins depend, or nothing if it is already right."""
    return [replace(action, changes=Changes(access=(path,))) for action in write_file(facts, path, content)]


def _umask(mode: int) -> int:
    return 0o077 if mode & 0o077 == 0 else 0o022


def remove_file(facts: Facts, path: str) -> list[Action]:
    """Return the action that removes a file, or nothing if it does not exist."""
    if path not in facts.files:
        return []
    return [Action(f"remove {path}", f"rm -f {shlex.quote(path)}", changes=change_files(path))]


def install_packages(
    names: Iterable[str],
    *options: str,
    files: tuple[str, ...] = (),
    trees: tuple[Tree, ...] = (),
    archive: bool = False,
) -> Action:
    """Return the action that installs packages, given by name or as a file, and starts none of their daemons.

    `options` are further ones of apt-get; `files` and `trees` are what the packages create and do not remove. With
    `archive`, the packages come from the controller's archive if it has them all.
    """
    listed = " ".join(names)
    arguments = f"{' '.join(['--no-install-recommends', *options])} {listed}"
    journaled = f"if [ -x {JOURNAL} ]; then {JOURNAL} installs {arguments}; fi\n"
    installation = f"{FETCH_LISTS}{journaled}{APT_GET} install -y {arguments}"
    if archive:
        installation = render_installation(APT_GET, arguments, LISTS_LOCK, fallback=installation)
    script = (
        # needrestart would look at every process after each installation; set-up starts the daemons itself.
        f"export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1\n{KEEP_DAEMONS_STOPPED}{installation}"
    )
    fix = "give the node access to its package mirror (network.egress), or use an image that has the packages"
    log = "/var/log/apt/term.log"
    changes = Changes(packages=True, files=(POLICY, POLICY_ASIDE, *files), trees=trees)
    return Action(f"install {listed}", script, timeout=INSTALL_TIMEOUT_S, log=log, fix=fix, slow=True, changes=changes)


def write_marker(name: str, digest: str) -> str:
    """Return shell text that records which configuration a daemon has loaded; it must run after the daemon loads it."""
    return f"mkdir -p {MARKERS} && echo {digest} > {MARKERS}/{name}"


def digest(*parts: str | bytes) -> str:
    """Return a short hash of the parts that changes if any part or the boundary between two parts changes."""
    total = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def enable_unit(unit: str) -> str:
    """Return shell text with the effect of `systemctl enable`, but without SysV scripts and a reload per unit."""
    wants = "/etc/systemd/system/multi-user.target.wants"
    source = f"$(ls /etc/systemd/system/{unit}.service /usr/lib/systemd/system/{unit}.service 2>/dev/null | head -n 1)"
    return f'mkdir -p {wants} && ln -sfn "{source}" {wants}/{unit}.service'


def reload_units(facts: Facts, *files: str) -> str:
    """Return shell text that lets systemd read the files of units again; empty if all of them are new.

    systemd reads a new file when the unit starts. A reload reads all units, which takes a booting machine up to 0.3 s.
    """
    return "systemctl daemon-reload\n" if any(f"/etc/systemd/system/{file}" in facts.files for file in files) else ""


def record_changes(action: Action) -> Action:
    """Return the action for an adopted machine, whose journal records what it changes."""
    if action.changes is None:
        raise ValueError(f"the action '{action.title}' does not declare what it changes")
    return replace(action, script=journal(action.script, action.changes))


def join_actions(actions: Iterable[Action]) -> tuple[str, bytes]:
    """Return one script and its standard input for several actions.

    The script prints a marker after each action and stops at the first one that fails.
    """
    scripts, data = [], b""
    for number, action in enumerate(actions):
        stdin = "" if action.data else " </dev/null"
        # `( … ) || …` would not work: a shell ignores `set -e` inside a condition.
        scripts.append(
            f"( set -e\n{action.script}\n){stdin}\ncode=$?\n"
            f"if [ $code != 0 ]; then exit $code; fi; echo; echo {DONE} {number}"
        )
        data += action.data
    return "\n".join(scripts), data
