"""Build Pulumi from Go modules, if its release is not pinned or not reachable; setup/pulumi pins every module."""

import json
import os
import shutil
import stat
from pathlib import Path

from setup import pins
from setup.paths import Paths
from setup.pins import is_at_least
from setup.run import SetupError, ask, run

VERSION = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
CLI = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
HOST = "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BUILD_TIMEOUT_S = 60 * 60.0


def find_go() -> str | None:
    """Return the path of an installed Go, or None."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def is_new_enough(go: str | None) -> bool:
    """Return whether this Go can build Pulumi as it is."""
    return go is not None and is_at_least(ask([go, "version"]).out, pins.GO)


def is_proxy_reachable(go: str, machine: str, directory: Path) -> bool:
    """Return whether Go can download modules; Go itself is run, so that its proxy settings apply."""
    directory.mkdir(parents=True, exist_ok=True)
    answer = ask(["env", "-C", directory, *environment(), go, "list", "-m", _toolchain_module(machine)], timeout=20)
    return answer.code == 0


def build(paths: Paths, machine: str, staging: Path, log: Path) -> None:
    """Put the two programs and the two scripts of Pulumi into staging/bin."""
    installed = find_go()
    if installed is None:
        raise SetupError("Go is not installed, so Pulumi cannot be built")
    go = choose_go(installed, machine, log)
    modules = paths.root / "setup" / "pulumi"
    binaries = staging / "bin"
    binaries.mkdir(parents=True)
    for module, package, version in (("language-python", HOST, pins.LANGUAGE_HOST), ("cli", CLI, pins.PULUMI)):
        flags = f"-s -w -X {VERSION}={version}"
        argv = [go, "build", "-v", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", f"{binaries}/", package]
        run(["env", *environment(), *argv], log, cwd=modules / module, timeout=BUILD_TIMEOUT_S)
    sdk = _ask_go(["env", "-C", modules / "cli", *environment(), go, "list", "-m", "-f", "{{.Dir}}"], "sdk/v3")
    for script in ("cmd/pulumi-language-python-exec", "dist/pulumi-resource-pulumi-python"):
        target = binaries / Path(script).name
        shutil.copyfile(Path(sdk) / "python" / script, target)
        target.chmod(0o755)


def choose_go(go: str, machine: str, log: Path) -> str:
    """Return this Go if it is new enough; otherwise download the version in go.mod as a module, and verify it."""
    version = ask([go, "version"]).out
    if is_at_least(version, pins.GO):
        return go
    if machine not in pins.GO_SUMS:
        raise SetupError(
            f"{version} is older than {pins.GO}, which is not pinned for {machine}: install {pins.GO} or newer"
        )
    with log.open("a") as note:
        note.write(f"{version} is older than {pins.GO}: downloading Go {pins.GO} from the module proxy\n")
    download: list[str | Path] = ["env", "-C", log.parent, *environment(), go, "mod", "download", "-json"]
    module = json.loads(_ask_go(download, _toolchain_module(machine)))
    if module["Sum"] != pins.GO_SUMS[machine]:
        name, pinned = module["Path"], pins.GO_SUMS[machine]
        raise SetupError(f"{name} has the checksum {module['Sum']}, setup/pins.py has {pinned}: not used")
    home = Path(module["Dir"])
    # Module archives carry no file modes, so the executables get theirs here, as Go's own toolchain switch does.
    tools = [path for path in (home / "pkg" / "tool").rglob("*") if path.is_file()]
    for program in [*(home / "bin").iterdir(), *tools]:
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(home / "bin" / "go")


def _ask_go(argv: list[str | Path], module: str) -> str:
    full = module if "@" in module else f"github.com/pulumi/pulumi/{module}"
    answer = ask([*argv, full], timeout=600)
    if answer.code:
        raise SetupError(f"Go cannot find {full}: {answer.err or answer.out}")
    return answer.out


def _toolchain_module(machine: str) -> str:
    return f"golang.org/toolchain@v0.0.1-go{pins.GO}.linux-{ARCHITECTURES[machine]}"


def environment() -> list[str]:
    """Return the variables of Go commands."""
    # Only the proxies of the user's Go settings may affect the build.
    return ["GOFLAGS=", "GOROOT=", "GO111MODULE=on", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0"]
