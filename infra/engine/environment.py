"""The environment of Pulumi commands, also as shell lines for people who run `pulumi` by hand."""

from __future__ import annotations

import fcntl
import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.engine.remote_state import list_stacks, open_store
from infra.engine.stop import Stop
from infra.home import FILE_STATE, STATE_VARIABLE, Home, StackHome, private_folder
from infra.resources.force import FORCE

# The language host uses the Python of the activated virtualenv; variables that select another one are removed.
_REMOVED = ("PYTHONHOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN", "PULUMI_PYTHON_CMD")


def environment(base: Mapping[str, str], home: Home) -> dict[str, str]:
    """Return `base` with everything that a `pulumi` command of this home needs."""
    inherited = {name: value for name, value in base.items() if name not in _REMOVED}
    return inherited | additions(base, home)


@dataclass(frozen=True)
class RunOptions:
    """The options of a run that are not in the spec."""

    force: bool = False
    """Whether to change nodes even if jobs are running on them."""
    budget_checked: bool = False
    """Whether the budget was checked against today's prices; if so, the program does not check it again."""
    rotation: str = ""
    """The step of a rotation of the Slurm key that the run takes; none if empty."""


DEFAULT_OPTIONS = RunOptions()
BUDGET_CHECKED = "MUSTER_BUDGET_JUDGED"
ROTATION = "MUSTER_ROTATE_KEYS"


def stack_environment(
    base: Mapping[str, str], stack: StackHome, options: RunOptions = DEFAULT_OPTIONS
) -> dict[str, str]:
    """Return `environment` with the variables of a single run of a stack."""
    run = {"MUSTER_PROGRESS": str(stack.progress), "PULUMI_DEBUG_COMMANDS": "true"}
    switches = {
        FORCE: "1" if options.force else "",
        BUDGET_CHECKED: "1" if options.budget_checked else "",
        ROTATION: options.rotation,
    }
    inherited = {name: value for name, value in environment(base, stack.home).items() if name not in switches}
    return inherited | run | {name: value for name, value in switches.items() if value}


def additions(base: Mapping[str, str], home: Home) -> dict[str, str]:
    """Return the variables that `environment` sets."""
    front = [str(home.tools), str(home.venv / "bin")]
    other_folders = [part for part in base.get("PATH", os.defpath).split(os.pathsep) if part not in front]
    return {
        "PATH": os.pathsep.join(front + other_folders),
        "VIRTUAL_ENV": str(home.venv),
        "PULUMI_BACKEND_URL": open_store(home).backend_url,
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(home.passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SUPPRESS_NEO_LINK": "true",
        # A plain `pulumi up` lists the packages with pip, which would also ask the package index for a newer pip.
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "MUSTER_HOME": str(home.root),
        "MUSTER_STACKS": str(home.stacks),
        STATE_VARIABLE: home.remote or FILE_STATE,
    }


def exports(base: Mapping[str, str], home: Home) -> str:
    """Return the same variables as shell lines for `eval`."""
    unset = [f"unset {name}" for name in _REMOVED if name in base]
    return "\n".join(unset + [f"export {name}={shlex.quote(value)}" for name, value in additions(base, home).items()])


def prepare(home: Home) -> None:
    """Create the folders and the passphrase that every `pulumi` command expects to exist."""
    private_folder(home.root)
    private_folder(home.state)
    if _has_passphrase(home) or _has_other_operators(home):
        return
    descriptor, new = tempfile.mkstemp(dir=home.root, prefix=".passphrase.")
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    try:
        # A link appears with all of its content and never replaces a file: the first of several commands wins.
        os.link(new, home.passphrase)
    except FileExistsError:
        pass
    finally:
        Path(new).unlink()


def _has_other_operators(home: Home) -> bool:
    """Return whether a passphrase is not needed; raise Stop if the one of the other operators is missing."""
    if not home.remote:
        return False
    store = open_store(home)
    if store.secrets_provider:
        return True
    if stacks := list_stacks(store):
        raise Stop(
            f"{home.passphrase} is missing: it decrypts the secrets of {', '.join(stacks)} in {home.remote}",
            "get it from an operator who has it, over a channel that only you read, and set its mode to 600",
        )
    return False


def _has_passphrase(home: Home) -> bool:
    """Return whether there is a passphrase; remove the empty file that an interrupted first command left."""
    try:
        with home.passphrase.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size or any(home.state.glob(".pulumi/stacks/*/*.json*")):
                return True
            # Another command may have put a valid one here since; that is another file than the opened one.
            if os.path.samestat(home.passphrase.stat(), os.fstat(file.fileno())):
                home.passphrase.unlink()
    except FileNotFoundError:
        pass
    return False
