"""Pulumi's AWS plugin in the version that the program needs: installed already, or fetched once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from infra.engine.environment import environment
from infra.engine.stop import Stop
from infra.home import Home

_NAME = "pulumi-resource-aws"


def required_version() -> str:
    """Return the plugin's version, which is that of the Python package."""
    return f"v{version('pulumi-aws')}"


def installed(env: Mapping[str, str]) -> bool:
    """Return whether the plugin is installed; a file `.partial` marks an interrupted installation."""
    pulumi = Path(env.get("PULUMI_HOME") or Path(env.get("HOME", "/root")) / ".pulumi")
    folder = pulumi / "plugins" / f"resource-aws-{required_version()}"
    complete = folder.is_dir() and not folder.with_name(f"{folder.name}.partial").exists()
    return complete or shutil.which(_NAME, path=env["PATH"]) is not None


def ensure(home: Home, say: Callable[[str], None]) -> None:
    """Install the plugin where it is missing, because Pulumi itself would fetch it silently in the middle of a run."""
    env, version_ = environment(os.environ, home), required_version()
    if installed(env):
        return
    if shutil.which("pulumi", path=env["PATH"]) is None:
        raise Stop("the Pulumi CLI is not installed", "make setup")
    say(f"fetching Pulumi's AWS plugin {version_}; once for all stacks")
    command = [
        "pulumi",
        "plugin",
        "install",
        "resource",
        "aws",
        version_,
        "--non-interactive",
        "--color",
        "never",
    ]
    result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False)
    if result.returncode or not installed(env):
        errors = [text.strip() for text in result.stderr.splitlines() if text.strip()] or ["no error message"]
        what = f"Pulumi's AWS plugin {version_} is missing and could not be fetched: {errors[-1]}; nothing was started"
        raise Stop(what, f'`pulumi plugin install resource aws {version_}` must work; `eval "$(make -s env)"` first')
