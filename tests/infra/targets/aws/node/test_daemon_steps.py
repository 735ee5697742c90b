"""Steps that start Slurm's daemons on AWS: each waits until slurmctld answers."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bootstrap.steps import members
from bootstrap.steps.daemon import DAEMONS
from bootstrap.steps.step import Step
from bootstrap.transport.local import LocalTransport
from cluster.inventory import Node
from infra.targets.aws.node.identity import add_node
from tests.infra.targets.aws.node.clusters import desired, inventory, ubuntu
from tests.infra.targets.aws.node.step_actions import GPU, LOGIN, written


def test_slurmd_gets_its_node_name_and_its_first_start_counts_as_a_boot() -> None:
    target = replace(desired(), inventory=add_node(inventory(), GPU))
    actions = members.COMPUTE_STEP.actions(ubuntu(), GPU, target)
    options = written(actions, "/etc/default/slurmd")
    assert options == 'SLURMD_OPTIONS="-N gpu-3 --conf-server controller:6817"\n'
    assert "|| boot=-b" in written(actions, members.FIRST_START)
    # A slurmd that runs when the file is new has had its first start.
    [load] = [action for action in actions if action.title == "load slurmd's unit"]
    assert "if systemctl -q is-active slurmd; then mkdir -p /run/muster/slurmd-started; fi" in load.script


@pytest.mark.parametrize(("step", "node"), [(members.LOGIN_STEP, LOGIN), (members.COMPUTE_STEP, GPU)])
def test_a_daemon_starts_after_slurmctld_answers(step: Step, node: Node) -> None:
    """The machines of a new cluster start at the same time, and the controller takes minutes longer."""
    target = replace(desired(), inventory=add_node(inventory(), node))
    *_, wait, start = step.actions(ubuntu(), node, target)
    assert (wait.title, start.title) == ("wait for slurmctld", f"start {DAEMONS[node.role][0]}")
    assert "/dev/tcp/controller/6817" in wait.script
    assert wait.slow, "its progress is shown"
    assert wait.timeout > 1800


def test_a_machine_waits_until_slurmctld_listens() -> None:
    transport, lines = LocalTransport(), list[str]()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(10)
        wait = members.wait_for_slurmctld("127.0.0.1", 120.0, listener.getsockname()[1])
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(transport.run, wait.script, timeout=240.0, on_line=lines.append)
            while not lines:
                time.sleep(0.05)
            assert not result.done()
            listener.listen()
            assert result.result().code == 0
    assert re.fullmatch(r"waiting for slurmctld at 127\.0\.0\.1:\d+, \d+ s so far", lines[0])


def test_a_machine_does_not_wait_for_ever() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        wait = members.wait_for_slurmctld("127.0.0.1", 1.0, unused.getsockname()[1])
        completed = LocalTransport().run(wait.script, timeout=240.0)
    assert completed.code == 1
    assert re.search(r"slurmctld does not answer at 127\.0\.0\.1:\d+ after \d+ s\n$", completed.err)
