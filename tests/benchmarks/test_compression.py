"""The benchmark of compressed gradients: it refuses unusable methods at the start, and cleans up when it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.compression import COMPARED, METHODS, check_methods
from benchmarks.nodes import REPO
from cluster import names

DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_LOG"
[ "$1" != run ] || exec sleep 20
"""


@pytest.mark.parametrize("methods", [",".join(METHODS), ",".join(COMPARED), "int8,topk,none"])
def test_methods_with_both_compared_ones_are_accepted(methods: str) -> None:
    assert check_methods(methods) == methods


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("topk,int8", "topk,int8 lacks none, whose losses are compared; add it"),
        ("none", "none lacks topk, whose losses are compared; add it"),
        ("int8", "int8 lacks none and topk, whose losses are compared; add it"),
        ("none,topk,zip", f"zip is not allowed; allowed: {', '.join(METHODS)}"),
    ],
)
def test_other_methods_are_refused_before_anything_is_measured(methods: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        check_methods(methods)
    assert str(refusal.value) == message


def test_sigterm_removes_containers_and_network(tmp_path: Path) -> None:
    docker, log = tmp_path / "docker", tmp_path / "log"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DOCKER_LOG": str(log)}
    command = [sys.executable, "-m", "benchmarks.compression"]
    with subprocess.Popen(command, cwd=REPO, env=environment, start_new_session=True) as benchmark:
        try:
            deadline = time.monotonic() + 120
            while not log.exists() or log.read_text().count("run --rm") < 2:
                assert time.monotonic() < deadline, "the nodes did not start"
                time.sleep(0.05)
            benchmark.send_signal(signal.SIGTERM)
            assert benchmark.wait(120) == 128 + signal.SIGTERM
        finally:
            os.killpg(benchmark.pid, signal.SIGKILL)
    created, *_, removed = log.read_text().splitlines()
    network = created.split()[-1]
    assert f"--label {names.CLUSTER}=bench-compression" in created
    assert removed == f"network rm {network}"
    assert f"rm -f {network}-0" in log.read_text()
    assert f"rm -f {network}-1" in log.read_text()
