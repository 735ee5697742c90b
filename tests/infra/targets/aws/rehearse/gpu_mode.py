"""Rehearse `make test-aws ARGS=--gpu`: the same command and test, against a simulated account instead of a real one.

Usage: `python -m tests.infra.targets.aws.rehearse.gpu_mode HOME`. It is a process of its own, because a rehearsal
changes moto. Machines have no GPU that computes, so the training step runs on CPUs and is not compiled.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import yaml

from infra.engine.stop import FAILED, Stop
from infra.home import Home, private_folder
from infra.targets.aws.account_types import REHEARSED_FILE
from infra.targets.aws.rehearse.moto_server import ACCOUNT as SIMULATED_ACCOUNT
from infra.targets.aws.rehearse.plugin import PLUGIN
from infra.targets.aws.rehearse.rehearsal import Rehearsal, rehearse, run_command
from infra.targets.aws.spec import region_of
from infra.targets.mixins import RehearsalOptions
from muster.commands import screen
from tests.harness import REPO
from tests.infra.targets.aws.rehearse.session_stand_in import write_session_tools
from tests.infra.targets.aws.with_engine.__main__ import GPU_HOME
from tests.infra.targets.aws.with_engine.cloud_stack import read_example
from tests.infra.targets.aws.with_engine.requirements import ACCOUNT, REHEARSED, STACK, gpu_spec_changes

OPTIONS = RehearsalOptions(seed=1, speed=20, nodes=1, scenario="gpu-mode")


def main(root: Path) -> int:
    """Rehearse the GPU mode in a home of its own; return the exit code."""
    stacks = root / "stacks"
    stacks.mkdir(parents=True)
    spec = {**read_example(STACK), **gpu_spec_changes()}
    (stacks / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": spec}}))
    home = Home(repo=REPO, root=root, cache=Home.of(os.environ).cache, stacks=stacks)
    try:
        rehearse(home.stack(STACK), OPTIONS, screen, run_gpu_mode)
    except Stop as stop:
        print(stop.what, file=sys.stderr)
        return stop.code
    return 0


def run_gpu_mode(rehearsal: Rehearsal) -> None:
    """Run the command; raise Stop if it fails."""
    rehearsed = rehearsal.rehearsed
    # The command has its own home inside that of the rehearsal; its machines have the same sizes.
    shutil.copy(rehearsed.home.root / REHEARSED_FILE, private_folder(rehearsed.home.root / GPU_HOME))
    tools = write_session_tools(rehearsed.home.root / "session-tools")
    variables = rehearsal.cloud.moto.environment(region_of(rehearsed.spec))
    env = rehearsed.environment(variables, PLUGIN) | {ACCOUNT: SIMULATED_ACCOUNT, REHEARSED: rehearsed.cidr}
    env["PATH"] = os.pathsep.join([str(tools), env["PATH"]])
    command = [sys.executable, "-m", "tests.infra.targets.aws.with_engine", "--gpu", "-p", "no:cacheprovider"]
    if code := run_command(command, env, REPO, lambda text: rehearsal.console.say(f"  {text}")):
        raise Stop(f"the GPU mode of test-aws exited with {code}", code=FAILED)
    # The rehearsal itself has nothing to remove after that, and checks this receipt.
    shutil.copytree(rehearsed.home.root / GPU_HOME / "receipts", rehearsed.home.root / "receipts")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
