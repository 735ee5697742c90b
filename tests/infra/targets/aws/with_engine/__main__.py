"""`make test-aws`: the life of a cluster in a real account, or what is missing for it; words go to pytest.

MUSTER_TEST_AWS=123456789012 python -m tests.infra.targets.aws.with_engine
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from infra.home import Home
from tests.infra.targets.aws.with_engine.cloud import REPO, in_account
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, example
from tests.infra.targets.aws.with_engine.needs import ACCOUNT, CLUSTER, HOME, REGION, STACK, missing, price

TESTS = "tests/infra/targets/aws/with_engine/test_pair.py"
# They count moto's calls, know how quick it is, and start a GPU node that an account may have no quota for.
ON_MOTO_ALONE = (
    "test_api_calls_do_not_grow_unnoticed",
    "test_engine_time_does_not_grow_unnoticed",
    "test_a_node_that_slurm_launches",
)
LONGEST_S = 3600


def main(words: list[str]) -> int:
    lacking = missing()
    if lacking:
        print("test-aws lacks\n" + "\n".join(f"  {line}" for line in lacking), file=sys.stderr)
        return 1
    home = Home.of(os.environ).root / "test-aws"
    stack = example(STACK, home, in_account(os.environ[ACCOUNT], REGION, os.environ), name=CLUSTER)
    print(
        f"test-aws: cluster {CLUSTER} in account {os.environ[ACCOUNT]}, {REGION}; {price()}; state in {home}",
        flush=True,
    )
    if not removed(stack):
        return 1
    try:
        code = run(home, words)
    finally:
        # Also where the tests were stopped; a run that was killed is removed by the next one.
        gone = removed(stack)
    return code or int(not gone)


def run(home: Path, words: list[str]) -> int:
    left_out = [f"--deselect={TESTS}::{name}" for name in ON_MOTO_ALONE]
    line = [sys.executable, "-m", "pytest", TESTS, "-v", "-x", f"--timeout={LONGEST_S}", *left_out, *words]
    return subprocess.run(line, cwd=REPO, env={**os.environ, HOME: str(home)}, check=False).returncode


def removed(stack: CloudStack) -> bool:
    """Nothing to do where the tests have done it."""
    env = stack.environment()
    if not Home.of(env).stack(stack.name).state.exists():
        return True
    line = [sys.executable, "-m", "muster.cli", "teardown", "--stack", stack.name, "--yes", "--force"]
    return subprocess.run(line, cwd=REPO, env=env, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
