"""Pulumi's AWS plugin in the version that the program needs: installed already, or fetched once, verified if pinned."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path

from infra.engine.environment import environment
from infra.engine.stop import Stop
from infra.home import Home

SHA256: dict[tuple[str, str], str] = {}
"""Pinned SHA-256 of the archive, by version and machine; docs/release.md says how to add one."""
RELEASES = "https://get.pulumi.com/releases/plugins"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONNECT_TIMEOUT_S = 30
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
    machine = platform.machine()
    pinned = SHA256.get((version_, machine))
    say(
        f"fetching Pulumi's AWS plugin {version_}; once for all stacks"
        + ("" if pinned else f"; not verified: no checksum is pinned for {machine}")
    )
    with tempfile.TemporaryDirectory() as scratch:
        source = ["--file", str(_download(machine, pinned, Path(scratch)))] if pinned else []
        _install(env, source)


# Only tests run this until SHA256 has a pin.
def _download(machine: str, pinned: str, folder: Path) -> Path:
    """Download the archive and return its path; raise Stop unless it has the pinned SHA-256.

    `pulumi plugin install --checksum` does not do: 3.259.0 computes the sum of an empty file and rejects every archive.
    """
    archive = folder / f"{_NAME}-{required_version()}-linux-{ARCHITECTURES[machine]}.tar.gz"
    url = f"{RELEASES}/{archive.name}"
    try:
        # S310 is about schemes from outside; RELEASES is a constant.
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as answer, archive.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
    except (OSError, HTTPException) as error:
        raise _stop(f"{url}: {error}") from None
    with archive.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != pinned:
        what = f"{url} has SHA-256 {actual}, infra/targets/aws/plugin.py has {pinned}: not used; nothing was started"
        raise Stop(what, "compare with the plugin's release page; if they differ, the download was changed on its way")
    return archive


def _install(env: Mapping[str, str], source: list[str]) -> None:
    options = [*source, "--non-interactive", "--color", "never"]
    command = ["pulumi", "plugin", "install", "resource", "aws", required_version(), *options]
    result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False)
    if result.returncode or not installed(env):
        errors = [text.strip() for text in result.stderr.splitlines() if text.strip()] or ["no error message"]
        raise _stop(errors[-1])


def _stop(reason: str) -> Stop:
    version_ = required_version()
    what = f"Pulumi's AWS plugin {version_} is missing and could not be fetched: {reason}; nothing was started"
    return Stop(what, f'`pulumi plugin install resource aws {version_}` must work; `eval "$(make -s env)"` first')
