"""Pulumi's AWS plugin, of the version that the program is written for: there already, or fetched once."""

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


def wanted() -> str:
    return f"v{version('pulumi-aws')}"


def installed(env: Mapping[str, str]) -> bool:
    """A file beside the folder tells that an installation was broken off."""
    pulumi = Path(env.get("PULUMI_HOME") or Path(env.get("HOME", "/root")) / ".pulumi")
    folder = pulumi / "plugins" / f"resource-aws-{wanted()}"
    whole = folder.is_dir() and not folder.with_name(f"{folder.name}.partial").exists()
    return whole or shutil.which(_NAME, path=env["PATH"]) is not None


def ensure(home: Home, say: Callable[[str], None]) -> None:
    """Asked for here: in the middle of a run Pulumi would fetch it without a word."""
    env = environment(os.environ, home)
    if installed(env):
        return
    if shutil.which("pulumi", path=env["PATH"]) is None:
        raise Stop("the Pulumi CLI is not installed", "make setup")
    say(f"fetching Pulumi's AWS plugin {wanted()}; once for all stacks")
    line = ["pulumi", "plugin", "install", "resource", "aws", wanted(), "--non-interactive", "--color", "never"]
    done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False)
    if done.returncode or not installed(env):
        said = [text.strip() for text in done.stderr.splitlines() if text.strip()] or ["it says nothing"]
        what = f"Pulumi's AWS plugin {wanted()} is not here and could not be fetched: {said[-1]}; nothing was started"
        raise Stop(what, f'`pulumi plugin install resource aws {wanted()}` must work; `eval "$(make -s env)"` first')
