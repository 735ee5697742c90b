"""What the Pulumi CLI must find in its environment, and the same as shell lines for who runs `pulumi` by hand."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping

from infra.home import Home, StackHome

# The language host takes its Python from the activated virtualenv; whatever else points at another one must go.
_REMOVED = ("PYTHONHOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_ACCESS_TOKEN", "PULUMI_PYTHON_CMD")


def environment(base: Mapping[str, str], home: Home) -> dict[str, str]:
    """`base` with all that a `pulumi` command of this home needs."""
    kept = {name: value for name, value in base.items() if name not in _REMOVED}
    return kept | additions(base, home)


def stack_environment(base: Mapping[str, str], stack: StackHome, *, force: bool = False) -> dict[str, str]:
    """`environment` plus what concerns one run of one stack."""
    run = {"MUSTER_PROGRESS": str(stack.progress), "PULUMI_DEBUG_COMMANDS": "true"}
    forced = {"MUSTER_FORCE": "1"} if force else {}
    kept = {name: value for name, value in environment(base, stack.home).items() if name != "MUSTER_FORCE"}
    return kept | run | forced


def additions(base: Mapping[str, str], home: Home) -> dict[str, str]:
    front = [str(home.tools), str(home.venv / "bin")]
    rest = [part for part in base.get("PATH", os.defpath).split(os.pathsep) if part not in front]
    return {
        "PATH": os.pathsep.join(front + rest),
        "VIRTUAL_ENV": str(home.venv),
        # Without `metadata=skip` each state file has an attributes file beside it; one that a killed `up` left half
        # written makes every later command fail with "failed to load checkpoint: EOF".
        "PULUMI_BACKEND_URL": f"file://{home.state}?metadata=skip",
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
    home.state.mkdir(parents=True, exist_ok=True)
    if home.passphrase.exists():
        return
    descriptor = os.open(home.passphrase, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
