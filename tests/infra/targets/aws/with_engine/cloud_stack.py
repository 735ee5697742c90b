"""A stack on AWS under test: our own commands and the real engine, in a home of its own, on whichever cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from infra.engine import project
from infra.engine.environment import environment, prepare
from infra.home import Home
from infra.targets.registry import load_spec as load
from tests.infra.targets.aws.with_engine.cloud import REPO, Cloud

# Of the g6 pair: so many API calls at most; who needs more has to say so here.
CALLS_AT_MOST = {"up": 160, "refresh": 100, "change": 225, "teardown": 220}
# On moto, about ten times what a quiet machine takes: what waits or retries without end is far beyond.
SECONDS_AT_MOST = {"up": 140.0, "refresh": 100.0, "change": 160.0, "teardown": 100.0}


def example(name: str, home: Path, cloud: Cloud, /, **changes: Any) -> CloudStack:
    """One of the stacks in the repository, with changes to its spec."""
    return CloudStack(name, home, written(name) | changes, cloud)


def written(name: str) -> dict[str, Any]:
    """The spec as the repository has it."""
    spec: dict[str, Any] = yaml.safe_load((REPO / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"][
        "muster:cluster"
    ]
    return spec


@dataclass
class CloudStack:
    """`spec` may be changed between two commands."""

    name: str
    home: Path
    spec: dict[str, Any]
    cloud: Cloud
    calls: dict[str, int] = field(default_factory=dict)
    """How many API calls each step took, by the name that `counted` got."""
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cloud.furnish(load(self.spec), self.cache)

    @property
    def cache(self) -> Path:
        return self.cloud.cache or self.home / "cache"

    def preview(self) -> str:
        """Of a stack that may not exist yet."""
        home = Home.of(self.environment())
        prepare(home)
        project.write(home.stack(self.name))
        if not home.stack(self.name).state.exists():
            self.pulumi("stack", "init", "--no-select")
        return self.pulumi("preview")

    def up(self, *options: str) -> str:
        return self.muster("up", *options)

    def unchanged(self) -> str:
        """Once more, failing where anything would change."""
        return self.pulumi("up", "--yes", "--skip-preview", "--refresh", "--expect-no-changes")

    def teardown(self) -> str:
        return self.muster("teardown", "--yes")

    def muster(self, command: str, *options: str, check: bool = True) -> str:
        line = [sys.executable, "-m", "muster.cli", command, "--stack", self.name, *options]
        return self._run(line, check=check)

    def pulumi(self, *arguments: str, check: bool = True) -> str:
        """The engine itself, in the project that the commands use."""
        line = ["pulumi", *arguments, "--stack", self.name, "--non-interactive", "--color", "never"]
        return self._run(line, check=check, cwd=self.home / self.name)

    @contextmanager
    def counted(self, what: str) -> Iterator[Counter[str]]:
        before, began = len(self.cloud.calls), time.monotonic()
        counter: Counter[str] = Counter()
        yield counter
        self.seconds[what] = time.monotonic() - began
        counter.update(f"{call.service} {call.action}" for call in self.cloud.calls[before:])
        self.calls[what] = counter.total()

    @property
    def receipt(self) -> dict[str, Any]:
        last = max((self.home / "receipts").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        read: dict[str, Any] = json.loads(last.read_text())
        return read

    def environment(self) -> dict[str, str]:
        stacks = self.home / "stacks"
        stacks.mkdir(parents=True, exist_ok=True)
        (stacks / f"Pulumi.{self.name}.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": self.spec}}))
        ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        paths = [str(Home.of(os.environ).tools), *map(str, self.cloud.tools), os.environ["PATH"]]
        own = {
            "MUSTER_HOME": str(self.home),
            "MUSTER_STACKS": str(stacks),
            "MUSTER_CACHE": str(self.cache),
            "PATH": os.pathsep.join(paths),
            "COLUMNS": "140",
        }
        return ours | own | dict(self.cloud.variables)

    def _run(self, line: list[str], *, check: bool, cwd: Path = REPO) -> str:
        env = self.environment()
        if line[0] == "pulumi":
            env = environment(env, Home.of(env))
        done = subprocess.run(
            line,
            env=env,
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=self.cloud.longest_s,
            stdin=subprocess.DEVNULL,
        )
        said = f"{done.stdout}\n{done.stderr}"
        assert (done.returncode == 0) == check, f"{' '.join(line)} exited {done.returncode}\n{said}\n{self._log(line)}"
        return said

    def _log(self, line: list[str]) -> str:
        log = self.home / self.name / f"{'destroy' if 'teardown' in line else 'up'}.log"
        return log.read_text()[-6000:] if log.exists() else ""
