"""What the Pulumi CLI must find in its environment, and the same as shell lines for who runs `pulumi` by hand."""

from __future__ import annotations

import fcntl
import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from infra.home import Home, StackHome, private_folder

# The language host takes its Python from the activated virtualenv; whatever else points at another one must go.
_REMOVED = ("PYTHONHOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN", "PULUMI_PYTHON_CMD")


def environment(base: Mapping[str, str], home: Home) -> dict[str, str]:
    """`base` with all that a `pulumi` command of this home needs."""
    kept = {name: value for name, value in base.items() if name not in _REMOVED}
    return kept | additions(base, home)


@dataclass(frozen=True)
class How:
    """What one run is told beside the spec."""

    force: bool = False
    budget_judged: bool = False
    """By today's prices, which the program does not ask for: the dated table has no say then."""


AS_THE_STACK_SAYS = How()
BUDGET_JUDGED = "MUSTER_BUDGET_JUDGED"
_FORCE = "MUSTER_FORCE"


def stack_environment(base: Mapping[str, str], stack: StackHome, how: How = AS_THE_STACK_SAYS) -> dict[str, str]:
    """`environment` plus what concerns one run of one stack."""
    run = {"MUSTER_PROGRESS": str(stack.progress), "PULUMI_DEBUG_COMMANDS": "true"}
    told = {name: "1" for name, wanted in ((_FORCE, how.force), (BUDGET_JUDGED, how.budget_judged)) if wanted}
    whole = environment(base, stack.home).items()
    kept = {name: value for name, value in whole if name not in (_FORCE, BUDGET_JUDGED)}
    return kept | run | told


def additions(base: Mapping[str, str], home: Home) -> dict[str, str]:
    front = [str(home.tools), str(home.venv / "bin")]
    rest = [part for part in base.get("PATH", os.defpath).split(os.pathsep) if part not in front]
    return {
        "PATH": os.pathsep.join(front + rest),
        "VIRTUAL_ENV": str(home.venv),
        # Without `metadata=skip` each state file has an attributes file beside it; one that a killed `up` left half
        # written makes every later command fail with "failed to load checkpoint: EOF".
        "PULUMI_BACKEND_URL": f"file://{quote(str(home.state))}?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(home.passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SUPPRESS_NEO_LINK": "true",
        "MUSTER_HOME": str(home.root),
        "MUSTER_STACKS": str(home.stacks),
    }


def exports(base: Mapping[str, str], home: Home) -> str:
    """Lines for `eval`."""
    unset = [f"unset {name}" for name in _REMOVED if name in base]
    return "\n".join(unset + [f"export {name}={shlex.quote(value)}" for name, value in additions(base, home).items()])


def prepare(home: Home) -> None:
    """The folders and the passphrase that every `pulumi` command expects to exist."""
    private_folder(home.state)
    if _has_passphrase(home):
        return
    descriptor, new = tempfile.mkstemp(dir=home.root, prefix=".passphrase.")
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    try:
        # Whole or not at all, and the first of several commands wins: a link never replaces a file.
        os.link(new, home.passphrase)
    except FileExistsError:
        pass
    finally:
        Path(new).unlink()


def _has_passphrase(home: Home) -> bool:
    """An empty file that nothing was encrypted with is what an interrupted first command left: it is removed."""
    try:
        with home.passphrase.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size or any(home.state.glob(".pulumi/stacks/*/*.json*")):
                return True
            # Another command may have put a good one here since; that is another file than the one opened.
            if os.path.samestat(home.passphrase.stat(), os.fstat(file.fileno())):
                home.passphrase.unlink()
    except FileNotFoundError:
        pass
    return False
