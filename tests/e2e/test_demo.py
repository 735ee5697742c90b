"""The first command of the README, `make demo`, on the stack file of the repository."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.harness import REPO, Spec, Stack

MakeStack = Callable[[str, Spec], Stack]


def make(stack: Stack, target: str) -> str:
    done = subprocess.run(
        ["make", target, f"STACK={stack.name}"],
        cwd=REPO,
        env=stack.environment(),
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_demo_then_teardown(make_stack: MakeStack) -> None:
    shipped: Spec = yaml.safe_load((REPO / "stacks" / "Pulumi.local.yaml").read_text())["config"]["muster:cluster"]
    stack = make_stack("demo", shipped | {"network": {"egress": False}})
    output = make(stack, "demo")
    assert "(correct)" in output
    assert "finished: all 60 steps done" in output
    page = Path(re.search(r"training report:\s+(\S+\.html)", output)[1]).read_text()
    assert page.count("<svg") >= 5
    assert re.search(r'(src|href)="http', page) is None
    for target in ("make ssh", "make status", "make teardown"):
        assert target in output
    receipt = make(stack, "teardown")
    assert f"muster-{stack.cluster}-gpu-2" in receipt
    assert "make clean-cache" in receipt
    assert stack.exists() == []
    assert "nothing" in make(stack, "teardown").lower()
