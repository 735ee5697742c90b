"""Machines that somebody owns, with a file server that stops answering, and with a wrong clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import names
from infra.resources import ssh_key
from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from slurm.health.clock import FIX
from slurm.health.drain import CAP_PREFIX, GOOD_ROUNDS, PREFIX
from tests.e2e.bare_machines import BareMachines, describe_rack, open_machines
from tests.e2e.frozen_storage import FrozenStorage, explain_lack, open_storage
from tests.e2e.wrong_clock import shifted_clock
from tests.fault_matrix.times import record
from tests.harness import Spec, Stack, wait_until

pytestmark = pytest.mark.nightly

HEAD, *RACK = HOSTS = ("head", "rack1-1", "rack1-2")
NODES = ("cpu-1", "cpu-2")
OUTAGE_S = 10.0
# slurmd checks every minute, and a check of a mount waits half a minute.
CHECKED_S = 300.0
STATUS_S = 60.0
# Each number is stored before the next one is written.
WRITER = """cd /shared/home/muster && rm -f {name}.log
sbatch --parsable -w {node} -o {name}.log --wrap 'for i in $(seq {count}); do echo $i; sync {name}.log; sleep 1; done'
"""
HEALTH = "SLURMD_NODENAME={node} /etc/muster/health"


@dataclass(frozen=True)
class Rack:
    """Three machines, the cluster that they are, and their shared filesystem."""

    machines: BareMachines
    stack: Stack
    storage: FrozenStorage

    def read_node(self, node: str) -> NodeState:
        return parse_nodes(self.stack.ssh("controller", show_nodes([node]), user="root"))[node]

    def serves(self, node: str) -> bool:
        """Return whether a node is up and in service, and nothing is said about its health."""
        state = self.read_node(node)
        return state.is_up and not state.out_of_service and not state.comment

    def list_problems(self) -> dict[str, str]:
        """Return what the health checks say about nodes: the reason of the drain, or the comment."""
        nodes = {name: self.read_node(name) for name in NODES}
        texts = {name: node.reason if node.out_of_service else node.comment for name, node in nodes.items()}
        return {name: text for name, text in texts.items() if text.startswith(PREFIX)}


@pytest.fixture(scope="module")
def rack(make_stack: Callable[[str, Spec], Stack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    if lack := explain_lack():
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("rack")
    key = ssh_key.generate("me")
    identity = folder / "identity"
    identity.write_text(key.private)
    stack = make_stack("rack", {"target": "hosts"})
    with ExitStack() as opened:
        storage = opened.enter_context(open_storage(stack.cluster, folder))
        shared = {"volume": storage.volume, "target": "/shared"}
        environments = {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env"}
        mounts = {host: (shared, environments | {"read_only": host != HEAD}) for host in HOSTS}
        machines = opened.enter_context(open_machines(stack.cluster, HOSTS, key.public, mounts))
        stack.spec |= describe_rack(machines, HEAD, identity)
        stack.up("--no-preflight")
        yield Rack(machines, stack, storage)
        stack.muster("teardown", "--yes", "--force")


@pytest.mark.fault(8)
def test_a_short_outage_of_the_file_server_changes_nothing(rack: Rack) -> None:
    job = start_writer(rack.stack, NODES[1], "short", 15)
    rack.storage.freeze()
    try:
        # The outage itself: nothing happens that could be awaited.
        time.sleep(OUTAGE_S)
    finally:
        rack.storage.thaw()
    assert_complete(rack.stack, job, "short", 15)
    assert rack.list_problems() == {}


@pytest.mark.fault(8)
def test_a_file_server_that_hangs_is_named_and_drains_only_as_many_nodes_as_allowed(rack: Rack) -> None:
    """Of two nodes, one may be drained. slurmd runs the checks by itself, and both nodes return by themselves."""
    job = start_writer(rack.stack, NODES[0], "long", 30)
    rack.storage.freeze()
    frozen = time.monotonic()
    try:
        wait_until(lambda: bool(rack.list_problems()), "a node reports the server", CHECKED_S)
        detect_s = time.monotonic() - frozen
        wait_until(lambda: len(rack.list_problems()) == len(NODES), "both nodes report it", CHECKED_S)
        problems = rack.list_problems()
        began = time.monotonic()
        words = print_status(rack)
        status_s = time.monotonic() - began
        began = time.monotonic()
        up = rack.stack.up(check=False)
        up_s = time.monotonic() - began
    finally:
        rack.storage.thaw()
    thawed = time.monotonic()
    cause = f"mounts: no answer within 30 s, /shared from {rack.storage.source} (fuse)"
    assert sorted(problems.values()) == sorted([f"{PREFIX}{cause}", f"{CAP_PREFIX}{cause}"])
    drained = next(name for name, text in problems.items() if not text.startswith(CAP_PREFIX))
    assert f"{drained} (health: mounts: no answer within 30 s" in words, words
    assert up.returncode != 0
    assert "does not answer" in up.stdout + up.stderr
    assert max(status_s, up_s) < STATUS_S, (status_s, up_s)
    assert_complete(rack.stack, job, "long", 30)
    wait_until(lambda: all(rack.serves(name) for name in NODES), "both nodes are in service", CHECKED_S)
    record(8, detect_s=detect_s, recover_s=time.monotonic() - thawed)


@pytest.mark.fault(15)
def test_a_clock_that_is_half_a_minute_off_drains_its_node_alone(rack: Rack, tmp_path: Path) -> None:
    """Only what comes over SSH sees the wrong clock here, and not slurmd, so the checks are run over SSH."""
    node, other = NODES
    health = HEALTH.format(node=node)
    with shifted_clock(rack.machines.roots[RACK[0]], tmp_path, 30):
        words = print_status(rack)
        rack.stack.ssh(node, health, user="root")
        drained = rack.read_node(node)
        other_serves = rack.serves(other)
    shown = re.search(rf"{node} \(its clock is ([\d.]+) s ahead of the controller's; {re.escape(FIX)}\)", words)
    measured = re.fullmatch(rf"health: clock: ([\d.]+) s ahead of the controller's, {re.escape(FIX)}", drained.reason)
    assert shown, words
    assert measured, drained
    for text in (shown[1], measured[1]):
        assert abs(float(text) - 30) < 1, text
    assert drained.out_of_service
    assert other_serves
    for _ in range(GOOD_ROUNDS):
        rack.stack.ssh(node, health, user="root")
    wait_until(lambda: rack.serves(node), "the node is back")


@pytest.mark.fault(15)
def test_status_names_a_clock_that_is_an_hour_off(rack: Rack, tmp_path: Path) -> None:
    node, _ = NODES
    with shifted_clock(rack.machines.roots[RACK[0]], tmp_path, -3600):
        words = print_status(rack)
    shown = re.search(rf"{node} \(its clock is ([\d.]+) s behind the controller's; {re.escape(FIX)}\)", words)
    assert shown, words
    assert abs(float(shown[1]) - 3600) < 1
    assert "its clock" not in print_status(rack)


def print_status(rack: Rack) -> str:
    """Return what `muster status` prints, on one line."""
    printed = rack.stack.muster("status", check=False)
    return " ".join((printed.stdout + printed.stderr).split())


def start_writer(stack: Stack, node: str, name: str, count: int) -> str:
    """Start a job that writes to the shared filesystem; return its number when it has begun to."""
    job = stack.ssh("controller", WRITER.format(node=node, name=name, count=count), user="muster")
    wait_until(lambda: bool(read_log(stack, name)), f"job {job} writes")
    return job


def assert_complete(stack: Stack, job: str, name: str, count: int) -> None:
    """Wait until the job has ended well, and require that nothing is missing of what it has written."""
    show = f"scontrol show job {job} | grep -o 'JobState=[A-Z]*'"
    wait_until(lambda: stack.ssh("controller", show, user="root") == "JobState=COMPLETED", f"job {job} has ended")
    assert read_log(stack, name) == [str(number) for number in range(1, count + 1)]


def read_log(stack: Stack, name: str) -> list[str]:
    """Return what a job has written."""
    return stack.ssh("controller", f"cat /shared/home/muster/{name}.log 2>/dev/null || true", user="muster").split()
