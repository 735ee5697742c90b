"""The Pulumi CLI: one on PATH that Pulumi.yaml accepts, else the official release, else built from Go modules."""

import os
import shutil
from pathlib import Path

from setup import pins, pulumi_go, pulumi_release
from setup.facts import Facts
from setup.paths import Paths
from setup.run import Failed, ask, run
from setup.scratch import fresh
from setup.version import at_least


def cached(paths: Paths) -> bool:
    return complete(paths.pulumi / "bin") or on_path()


def complete(binaries: Path) -> bool:
    return all(os.access(binaries / name, os.X_OK) for name in pins.PULUMI_FILES)


def on_path() -> bool:
    if not all(shutil.which(name) for name in pins.PULUMI_FILES):
        return False
    version = ask(["pulumi", "version"]).out
    return at_least(version, pins.PULUMI) and not at_least(version, pins.PULUMI_BELOW)


def act(paths: Paths, facts: Facts, log: Path) -> None:
    with fresh(paths, "pulumi") as scratch:
        made = scratch / "made"
        _obtain(paths, facts, made, log)
        run([made / "bin" / "pulumi", "version"], log)
        if paths.pulumi.exists():
            shutil.rmtree(paths.pulumi)
        paths.pulumi.parent.mkdir(parents=True, exist_ok=True)
        made.rename(paths.pulumi)


def _obtain(paths: Paths, facts: Facts, made: Path, log: Path) -> None:
    if facts.reach.get("release"):
        try:
            pulumi_release.fetch(facts.machine, made, log)
            return
        except Failed as failure:
            with log.open("a") as note:
                note.write(f"{failure}; building from Go modules instead\n")
            shutil.rmtree(made)
    pulumi_go.build(paths, facts.machine, made, log)
