"""A stack of machines under test, with the real Pulumi engine, a file backend, real providers and a real Docker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from infra.engine.environment import environment, prepare
from infra.engine.pulumi import serve_program
from infra.home import Home
from infra.targets.registry import get_target as target
from infra.targets.target import Deployment
from tests.container_script import run_script

PROGRAM = Path(__file__).parent / "program"
Spec = dict[str, Any]


def small(name: str, **changes: Any) -> Spec:
    """Return the spec of a controller and two small nodes, without egress."""
    size = {"cpus": 1, "memory_mb": 512}
    spec: Spec = {
        "name": name,
        "target": "local",
        "groups": {"gpu": {"count": 2, "size": size, "gpus": {"count": 2}}},
        "controller": {"size": size},
        "login": {"enabled": False},
        "network": {"egress": False},
        "storage": {"shared": {"keep": False}},
    }
    return spec | changes


@dataclass
class Machines:
    """A stack; `spec` can change between two calls of `up`."""

    stack: str
    home: Path
    spec: Spec
    env: dict[str, str] = field(default_factory=dict)
    program: Path = PROGRAM

    def __post_init__(self) -> None:
        self.folder = self.home / f"program-{self.stack}"
        shutil.copytree(self.program, self.folder)
        prepare(Home.of(self.environment()))
        self.pulumi("stack", "init", "--no-select")

    def up(self, *options: str, check: bool = True) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", "--refresh", "--suppress-outputs", *options, check=check)

    def destroy(self) -> str:
        return self.pulumi("destroy", "--yes", "--skip-preview")

    def pulumi(self, *arguments: str, check: bool = True) -> str:
        process = self.start(*arguments)
        text, _ = process.communicate(timeout=600)
        assert not check or process.returncode == 0, text
        assert check or process.returncode != 0, f"this should have failed\n{text}"
        return str(text)

    def start(self, *arguments: str, through: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start Pulumi; `through` is a command that starts it and reads the pipe that is its standard input."""
        config = {"config": {"muster:cluster": self.spec}}
        file = self.folder / f"Pulumi.{self.stack}.yaml"
        salt = [line for line in file.read_text().splitlines() if "encryptionsalt" in line] if file.exists() else []
        file.write_text("\n".join([yaml.safe_dump(config, sort_keys=False), *salt]))
        # As `muster up` runs it; test_plain_pulumi.py runs it without a host of ours.
        host = serve_program(self.folder) if arguments[0] in ("up", "preview", "destroy") else []
        return subprocess.Popen(
            [*through, *host, "pulumi", *arguments, "--stack", self.stack, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env=self.environment(),
            text=True,
            stdin=subprocess.PIPE if through else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def environment(self) -> dict[str, str]:
        base = dict(os.environ) | {"MUSTER_HOME": str(self.home)}
        return environment(base, Home.of(base)) | self.env

    def state(self, *, show_secrets: bool = False) -> str:
        return self.pulumi("stack", "export", *(["--show-secrets"] if show_secrets else []))

    @property
    def state_file(self) -> Path:
        return self.home / "state" / ".pulumi" / "stacks" / "muster" / f"{self.stack}.json"

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes of the inventory by name."""
        inventory = json.loads(json.loads(self.pulumi("stack", "output", "--json"))["inventory"])
        return {node["name"]: node for node in inventory["nodes"]}

    def containers(self) -> dict[str, tuple[str, str]]:
        """Return the id and start time of every running container, by node."""
        running = docker.from_env().containers.list(filters={"label": f"muster.cluster={self.spec['name']}"})
        return {c.labels["muster.node"]: (c.id or "", c.attrs["State"]["StartedAt"]) for c in running}

    def run(self, node: str, script: str) -> str:
        container = docker.from_env().containers.get(f"muster-{self.spec['name']}-{node}")
        done = run_script(container, script)
        assert done.code == 0, done.out
        return done.out.strip()

    @property
    def _deployment(self) -> Deployment:
        return Deployment(self.spec["name"], self.stack)

    def leftovers(self) -> list[str]:
        with self.at_home():
            leftovers = target("local").leftovers(self._deployment).resources
            return [f"{leftover.kind} {leftover.name}" for leftover in leftovers]

    def remove_by_label(self) -> None:
        local = target("local")
        with self.at_home():
            for leftover in local.leftovers(self._deployment).resources:
                local.remove(leftover, time.monotonic())

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Run the block with this stack's MUSTER_HOME."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MUSTER_HOME", str(self.home))
            yield
