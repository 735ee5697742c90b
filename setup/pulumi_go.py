"""Pulumi built from Go modules, where no release can be had; the wrapper modules in setup/pulumi pin every source."""

import json
import os
import shutil
import stat
from pathlib import Path

from setup import pins
from setup.paths import Paths
from setup.run import Failed, ask, run
from setup.version import at_least

VERSION = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"
CLI = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
HOST = "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIMIT_S = 60 * 60.0


def find() -> str | None:
    places = [shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def reachable(go: str, machine: str, directory: Path) -> bool:
    """Whether Go itself gets modules: its own proxy settings count, so it is asked rather than a host name."""
    directory.mkdir(parents=True, exist_ok=True)
    answer = ask(["env", "-C", directory, *_environment(), go, "list", "-m", _toolchain_module(machine)], timeout=20)
    return answer.code == 0


def build(paths: Paths, machine: str, made: Path, log: Path) -> None:
    """Put the two programs and the two scripts into made/bin."""
    found = find()
    if found is None:
        raise Failed("Go is not installed, so Pulumi cannot be built")
    go = _new_enough(found, machine, log)
    modules = paths.root / "setup" / "pulumi"
    binaries = made / "bin"
    binaries.mkdir(parents=True)
    for module, package, version in (("language-python", HOST, pins.LANGUAGE_HOST), ("cli", CLI, pins.PULUMI)):
        flags = f"-s -w -X {VERSION}={version}"
        argv = [go, "build", "-v", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", f"{binaries}/", package]
        run(["env", *_environment(), *argv], log, cwd=modules / module, timeout=LIMIT_S)
    sdk = _ask(["env", "-C", modules / "cli", *_environment(), go, "list", "-m", "-f", "{{.Dir}}"], "sdk/v3")
    for script in ("cmd/pulumi-language-python-exec", "dist/pulumi-resource-pulumi-python"):
        target = binaries / Path(script).name
        shutil.copyfile(Path(sdk) / "python" / script, target)
        target.chmod(0o755)


def _new_enough(go: str, machine: str, log: Path) -> str:
    """This Go, or the one go.mod asks for: Go is itself a module, which any older Go can download and verify."""
    version = ask([go, "version"]).out
    if at_least(version, pins.GO):
        return go
    with log.open("a") as note:
        note.write(f"{version} is older than {pins.GO}: taking Go {pins.GO} from the module proxy\n")
    text = _ask(["env", "-C", log.parent, *_environment(), go, "mod", "download", "-json"], _toolchain_module(machine))
    home = Path(json.loads(text)["Dir"])
    # Module archives carry no file modes: what has to be executed is made so here, as Go's own switch does.
    for program in [
        *(home / "bin").iterdir(),
        *(path for path in (home / "pkg" / "tool").rglob("*") if path.is_file()),
    ]:
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(home / "bin" / "go")


def _ask(argv: list[str | Path], module: str) -> str:
    full = module if "@" in module else f"github.com/pulumi/pulumi/{module}"
    answer = ask([*argv, full], timeout=600)
    if answer.code:
        raise Failed(f"Go cannot find {full}: {answer.err or answer.out}")
    return answer.out


def _toolchain_module(machine: str) -> str:
    return f"golang.org/toolchain@v0.0.1-go{pins.GO}.linux-{ARCHITECTURES[machine]}"


def _environment() -> list[str]:
    # Nothing of the user's Go settings but its proxies may change what is built.
    return ["GOFLAGS=", "GOROOT=", "GO111MODULE=on", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0"]
