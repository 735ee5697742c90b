"""Scripts for the controller that save and load what a cluster must not lose: queue, accounting and shared files."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.steps.cloud.slurm_packages import PUBLISHED
from bootstrap.upgrade.steps import CONVERSION_TIMEOUT_S, STATE
from slurm.control import accounting, config

SCRIPT = (Path(__file__).parent / "scripts" / "slurm-state.sh").read_text()
WORK = "/var/backups/muster/state"
PROBE_TIMEOUT_S = 20
SHARED = "shared"
# `up` creates these on the storage `shared`, and what it creates fits the cluster that it creates.
CREATED_BY_UP = ("env", "muster", ".bundles", PUBLISHED.partition("/")[0])
_SKELETON = (".bashrc", ".profile", ".bash_logout")
# Without the attributes a file could get other permissions; --sparse restores holes as holes.
_TAR = "tar --numeric-owner --acls --xattrs --sparse --anchored"


def save_state() -> str:
    """Return the script that saves queue and accounting in a folder of the controller; slurmctld stops for seconds."""
    return _step("save")


def read_state() -> str:
    """Return the script that prints the saved state as a compressed tar file, then deletes it."""
    return f"tar -C {WORK} -I 'gzip -1' -cf - . && rm -rf {WORK}"


def receive_state() -> str:
    """Return the script that unpacks a saved state from standard input."""
    return f"rm -rf {WORK} && (umask 077 && mkdir -p {WORK}) && tar -C {WORK} -xzf -"


def load_state() -> str:
    """Return the script that replaces queue and accounting by the unpacked state."""
    return _step("load")


def measure_files(mount: str, storage: str) -> str:
    """Return the script that prints the bytes of a filesystem's files, without those that `up` creates."""
    return f"cd {shlex.quote(mount)} && du -s -B 1 {_exclude(storage)} . | cut -f 1"


def read_files(mount: str, storage: str) -> str:
    """Return the script that prints the files of a filesystem as a compressed tar file.

    tar exits with 1 if a job changed or removed a file meanwhile, and names it on standard error.
    """
    return f"{_TAR} {_exclude(storage)} -C {shlex.quote(mount)} -I 'gzip -1' -cf - ."


def write_files(mount: str) -> str:
    """Return the script that unpacks files from standard input; those of the same name are replaced."""
    return f"{_TAR} -C {shlex.quote(mount)} -xpzf -"


def find_files(mount: str, storage: str) -> str:
    """Return the script that prints a file that `up` has not created, neither itself nor as part of a home, if any."""
    pruned = "".join(f"-path ./{name} -prune -o " for name in CREATED_BY_UP) if storage == SHARED else ""
    skeleton = " ".join(f"! -name {name}" for name in _SKELETON)
    return f"cd {shlex.quote(mount)} && find . {pruned}! -type d {skeleton} ! -path '*/.ssh/*' -print -quit"


def free_bytes(mount: str) -> str:
    """Return the script that prints the free bytes of a filesystem."""
    return f"df --output=avail -B 1 {shlex.quote(mount)} | tail -n 1"


def _exclude(storage: str) -> str:
    return " ".join(f"--exclude=./{name}" for name in CREATED_BY_UP) if storage == SHARED else ""


def _step(step: str) -> str:
    values = {
        "STEP": step,
        "WORK": WORK,
        "STATE": STATE,
        # The first start of a newer slurmdbd converts the database.
        "WAIT_S": f"{CONVERSION_TIMEOUT_S:.0f}",
        "PROBE_S": f"{PROBE_TIMEOUT_S}",
        "DATABASE_ANSWERS": accounting.DATABASE_ANSWERS,
        "CONTROLLER_ANSWERS": config.PING,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT
