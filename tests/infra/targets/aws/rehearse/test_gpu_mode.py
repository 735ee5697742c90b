"""The GPU mode of `make test-aws`, which has no account here, runs every night in a rehearsal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPO
from tests.infra.targets.aws.rehearse.run_rehearsal import OUTPUT, RunningRehearsal, list_remains
from tests.infra.targets.aws.rehearse.session_stand_in import main
from tests.infra.targets.aws.with_engine.requirements import GPU_CLUSTER, STACK, describe_gpu_price

# `up`, a training job over SSH and the removal take longer than other rehearsals: 9 minutes on a busy machine.
TIMEOUT_S = 1200


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S + 300)
def test_the_gpu_mode_trains_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.infra.targets.aws.rehearse.gpu_mode", str(tmp_path)]
    with (tmp_path / OUTPUT).open("w") as file:
        process = subprocess.Popen(command, cwd=REPO, stdout=file, stderr=subprocess.STDOUT)
    output = RunningRehearsal(tmp_path, STACK, process).finish(TIMEOUT_S)
    assert f"cluster {GPU_CLUSTER} in account " in output
    assert describe_gpu_price() in output
    assert "test_a_compiled_step_trains_on_the_gpu_and_nothing_is_left PASSED" in output
    assert list_remains(tmp_path, STACK) == []


def test_the_stand_in_of_the_aws_cli_does_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["s3", "ls"]) == 2
    assert "cannot run: s3 ls" in capsys.readouterr().err
    target = ["--target", "i-1", "--document-name", "AWS-StartPortForwardingSession"]
    assert main(["ssm", "start-session", *target, "--parameters", "portNumber=22", "--region", "us-east-1"]) == 2
    assert "allowed: AWS-StartSSHSession" in capsys.readouterr().err
