"""A stack under test on moto or AWS: muster's commands and the real engine, in its own home."""

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
from infra.engine.pulumi import serve_program
from infra.home import Home
from infra.targets.registry import load_spec as load
from tests.infra.targets.aws.with_engine.cloud import REPO, Cloud

# Limits for the g6 pair, by step. Raise them here if more API calls are needed.
CALLS_AT_MOST = {"up": 160, "refresh": 100, "change": 225, "teardown": 240}
# About twenty times what an idle machine takes with moto; endless waits or retries take far longer.
SECONDS_AT_MOST = {"up": 300.0, "refresh": 240.0, "change": 320.0, "teardown": 240.0}


def example(name: str, home: Path, cloud: Cloud, /, **changes: Any) -> CloudStack:
    """Return one of the repository's stacks, with changes to its spec."""
    return CloudStack(name, home, read_example(name) | changes, cloud)


def read_example(name: str) -> dict[str, Any]:
    """Return the spec of one of the repository's stacks."""
    spec: dict[str, Any] = yaml.safe_load((REPO / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"][
        "muster:cluster"
    ]
    return spec


@dataclass
class CloudStack:
    """A stack under test; `spec` may be changed between two commands."""

    name: str
    home: Path
    spec: dict[str, Any]
    cloud: Cloud
    calls: dict[str, int] = field(default_factory=dict)
    """Number of API calls of each step, by the name given to `counted`."""
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cloud.furnish(load(self.spec), self.cache)

    @property
    def cache(self) -> Path:
        return self.cloud.cache or self.home / "cache"

    def preview(self) -> str:
        """Preview a stack that may not exist yet."""
        home = Home.of(self.environment())
        prepare(home)
        project.write(home.stack(self.name))
        if not home.stack(self.name).state.exists():
            self.pulumi("stack", "init", "--no-select")
        return self.pulumi("preview")

    def up(self, *options: str) -> str:
        return self.muster("up", *options)

    def unchanged(self) -> str:
        """Run up again, failing if anything would change."""
        return self.pulumi("up", "--yes", "--skip-preview", "--refresh", "--expect-no-changes")

    def teardown(self) -> str:
        return self.muster("teardown", "--yes")

    def muster(self, subcommand: str, *options: str, check: bool = True) -> str:
        """Run a command of muster, such as `up` or `rotate keys`."""
        command = [sys.executable, "-m", "muster.cli", *subcommand.split(), "--stack", self.name, *options]
        return self._run(command, check=check)

    def attempt(self, subcommand: str, *options: str) -> tuple[int, str]:
        """Run a command of muster that may fail; return its exit code and output."""
        done = self._execute([sys.executable, "-m", "muster.cli", subcommand, "--stack", self.name, *options], REPO)
        return done.returncode, f"{done.stdout}\n{done.stderr}"

    def pulumi(self, *arguments: str, check: bool = True) -> str:
        """Run the engine itself in the project that the commands use."""
        host = serve_program(REPO / "infra") if arguments[0] in ("up", "preview", "destroy") else []
        command = [*host, "pulumi", *arguments, "--stack", self.name, "--non-interactive", "--color", "never"]
        return self._run(command, check=check, cwd=self.home / self.name)

    @contextmanager
    def counted(self, what: str) -> Iterator[Counter[str]]:
        """Record the API calls and seconds of a step under a name."""
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
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        paths = [str(Home.of(os.environ).tools), *map(str, self.cloud.tools), os.environ["PATH"]]
        folders = {
            "MUSTER_HOME": str(self.home),
            "MUSTER_STACKS": str(stacks),
            "MUSTER_CACHE": str(self.cache),
            "PATH": os.pathsep.join(paths),
            "COLUMNS": "140",
        }
        return inherited | folders | dict(self.cloud.variables)

    def _execute(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        env = self.environment()
        if "pulumi" in command:
            env = environment(env, Home.of(env))
        return subprocess.run(
            command,
            env=env,
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=self.cloud.timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def _run(self, command: list[str], *, check: bool, cwd: Path = REPO) -> str:
        done = self._execute(command, cwd)
        output = f"{done.stdout}\n{done.stderr}"
        assert (done.returncode == 0) == check, (
            f"{' '.join(command)} exited {done.returncode}\n{output}\n{self._log(command)}"
        )
        return output

    def _log(self, command: list[str]) -> str:
        log = self.home / self.name / f"{'destroy' if 'teardown' in command else 'up'}.log"
        return log.read_text()[-6000:] if log.exists() else ""
