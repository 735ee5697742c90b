"""Plain `pulumi` with the environment of `muster env`, as in the README; `muster` works on the same cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
import yaml

from tests.harness import REPO, Spec, Stack, small_spec


def pulumi(stack: Stack, line: str) -> str:
    """Run a command after `eval "$(muster env)"`, with the repository's Pulumi.yaml in the stack's home."""
    project = yaml.safe_load((REPO / "Pulumi.yaml").read_text()) | {"main": str(REPO / "infra")}
    (stack.home / "Pulumi.yaml").write_text(yaml.safe_dump(project))
    script = f'eval "$({REPO}/.venv/bin/muster env)" && {line}'
    done = subprocess.run(
        ["bash", "-ec", script], cwd=stack.home, env=stack.environment(), text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.nightly
def test_plain_pulumi_and_muster_work_on_the_same_cluster(
    make_stack: Callable[[str, Spec], Stack], cluster: Stack
) -> None:
    neighbours = cluster.exists()
    groups = {"cpu": {"count": 1, "size": {"cpus": 1, "memory_mb": 1024}}}
    stack = make_stack("plain", small_spec(groups=groups, login={"enabled": False}))
    pulumi(stack, f"pulumi stack init {stack.name}")
    pulumi(stack, f"pulumi up --yes --skip-preview -s {stack.name}")
    outputs = json.loads(pulumi(stack, f"pulumi stack output --json -s {stack.name}"))
    assert outputs["ready"]
    assert json.loads(stack.muster("output", "ready").stdout) == outputs["ready"]
    status = stack.muster("status").stdout
    assert "gate    passed" in status
    assert "cpu-1" in status
    assert "nothing to change" in stack.up().stdout
    assert stack.muster("output", "ready").stdout
    receipt = stack.muster("teardown", "--yes").stdout
    assert stack.exists() == []
    assert f"muster-{stack.cluster}-cpu-1" in receipt
    assert cluster.exists() == neighbours
    assert cluster.ssh("login", "srun -p gpu -N2 hostname | wc -l") == "2"
    assert stack.name not in pulumi(stack, "pulumi stack ls")
