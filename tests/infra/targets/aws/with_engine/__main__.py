"""`make test-aws`: test the life of a cluster in a real account; arguments go to pytest.

Usage: `MUSTER_TEST_AWS=123456789012 python -m tests.infra.targets.aws.with_engine [--gpu] [PYTEST OPTIONS]`.
With --gpu, a compiled training step runs on one GPU node instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from infra.home import Home
from tests.infra.targets.aws.with_engine.cloud import REPO, in_account
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, example
from tests.infra.targets.aws.with_engine.requirements import (
    ACCOUNT,
    CLUSTER,
    END,
    GPU_CAP_S,
    HOME,
    REGION,
    STACK,
    choose_end,
    describe_gpu_price,
    describe_price,
    gpu_spec_changes,
    list_missing,
)

GPU = "--gpu"
GPU_HOME = "test-aws-gpu"
GPU_TESTS = "tests/infra/targets/aws/with_engine/gpu_node.py"
TESTS = "tests/infra/targets/aws/with_engine/test_pair.py"
# These depend on moto's calls and speed, or start a GPU node, for which the account may have no quota.
MOTO_ONLY = (
    "test_number_of_api_calls_is_within_its_limit",
    "test_engine_time_is_within_its_limit",
    "test_slurm_launches_a_node",
)
TEST_TIMEOUT_S = 3600


def main(pytest_options: list[str]) -> int:
    """Check the requirements, run the tests, and remove the cluster."""
    gpu = GPU in pytest_options
    pytest_options = [option for option in pytest_options if option != GPU]
    problems = list_missing(gpu=gpu)
    if problems:
        lines = ("test-aws cannot start; missing:", *(f"  {line}" for line in problems))
        print("\n".join(lines), file=sys.stderr)
        return 1
    if gpu:
        os.environ[END] = choose_end(datetime.now(UTC))
    home = Home.of(os.environ).root / (GPU_HOME if gpu else "test-aws")
    changes = gpu_spec_changes() if gpu else {"name": CLUSTER}
    stack = example(STACK, home, in_account(os.environ[ACCOUNT], REGION, os.environ), **changes)
    price = describe_gpu_price() if gpu else describe_price()
    where = f"account {os.environ[ACCOUNT]}, {REGION}"
    print(f"test-aws: cluster {changes['name']} in {where}; {price}; state in {home}", flush=True)
    if not remove(stack):
        return 1
    try:
        code = run_gpu_test(home, pytest_options) if gpu else run_tests(home, pytest_options)
    finally:
        # Clean up even if the tests were interrupted; the next run cleans up after one that was killed.
        is_removed = remove(stack)
    return code or int(not is_removed)


def run_tests(home: Path, pytest_options: list[str]) -> int:
    deselected = [f"--deselect={TESTS}::{name}" for name in MOTO_ONLY]
    options = ["-v", "-x", f"--timeout={TEST_TIMEOUT_S}", *deselected, *pytest_options]
    command = [sys.executable, "-m", "pytest", TESTS, *options]
    return subprocess.run(command, cwd=REPO, env={**os.environ, HOME: str(home)}, check=False).returncode


def run_gpu_test(home: Path, pytest_options: list[str]) -> int:
    """Run the test of a GPU node and stop it at the cap, also if it hangs; return the exit code."""
    command = [sys.executable, "-m", "pytest", GPU_TESTS, "-v", "-x", f"--timeout={GPU_CAP_S}", *pytest_options]
    process = subprocess.Popen(command, cwd=REPO, env={**os.environ, HOME: str(home)}, start_new_session=True)
    try:
        return process.wait(GPU_CAP_S)
    except subprocess.TimeoutExpired:
        print(f"test-aws: stopped after {GPU_CAP_S} s, the cap on its cost", file=sys.stderr)
        return 1
    finally:
        # Everything that it started, such as the engine, must be gone before the cluster can be removed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def remove(stack: CloudStack) -> bool:
    """Tear the cluster down, unless the tests have done so, and return whether it is gone."""
    env = stack.environment()
    if not Home.of(env).stack(stack.name).state.exists():
        return True
    command = [sys.executable, "-m", "muster.cli", "teardown", "--stack", stack.name, "--yes", "--force"]
    return subprocess.run(command, cwd=REPO, env=env, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
