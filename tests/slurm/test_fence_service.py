"""The service that stops jobs of a node that is cut off, with a network, Slurm and signals that a test sets."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm.health import fence_service
from slurm.health.fence import Cluster
from slurm.health.fence_service import Watch
from slurm.health.stray_jobs import REGISTER

CONTROLLER, PEERS = "10.0.0.2", tuple(f"10.0.0.{number}" for number in range(10, 30))
CLUSTER = Cluster(CONTROLLER, PEERS, 300.0)
SLURMCTLD, SLURMD, SSHD = 6817, 6818, 22


@dataclass
class World:
    """What a node sees, and what it does."""

    mark: Path
    answering: set[tuple[str, int]] = field(default_factory=set)
    """Addresses and ports that answer; all else is dropped."""
    local: set[str] = field(default_factory=lambda: {"7", "8"})
    queue: str | None = "7|RUNNING\n8|RUNNING\n"
    """What squeue prints; None if slurmctld does not answer."""
    node: str = "gpu-1|allocated|none\n"
    probes: list[tuple[str, int]] = field(default_factory=list)
    signals: list[tuple[signal.Signals, set[str]]] = field(default_factory=list)
    restarts: int = 0
    now: float = 1000.0

    def does_answer(self, address: str, port: int) -> bool:
        self.probes.append((address, port))
        return (address, port) in self.answering

    def run(self, command: Sequence[str]) -> str:
        if tuple(command) == REGISTER:
            self.restarts += 1
            return ""
        if self.queue is None:
            raise subprocess.TimeoutExpired(command, 10.0)
        return self.queue if command[0] == "squeue" else self.node

    def signal_jobs(self, number: signal.Signals, jobs: Iterable[str]) -> set[str]:
        self.signals.append((number, set(jobs)))
        return self.signals[-1][1]

    def look(self, watch: Watch, seconds: float = 0.0) -> None:
        """Let time pass, and the service look once."""
        self.now += seconds
        self.probes.clear()
        watch.look(CLUSTER)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "run" / "jobs-stopped")
    monkeypatch.setattr(fence_service, "does_answer", world.does_answer)
    monkeypatch.setattr(fence_service, "_run", world.run)
    monkeypatch.setattr(fence_service, "list_local_jobs", lambda: set(world.local))
    monkeypatch.setattr(fence_service, "signal_jobs", world.signal_jobs)
    monkeypatch.setattr("slurm.health.stray_jobs.signal_jobs", world.signal_jobs)
    return world


def start(world: World) -> Watch:
    return Watch(world.mark, lambda: world.now)


@pytest.mark.parametrize("port", [9, SLURMCTLD, SSHD])
def test_any_port_of_the_controller_shows_that_it_is_there(world: World, port: int) -> None:
    """A firewall, such as the security groups of AWS, may drop what goes to a closed port."""
    world.answering = {(CONTROLLER, port)}
    watch = start(world)
    for _ in range(5):
        world.look(watch, CLUSTER.limit_s - 1)
    assert (world.signals, world.mark.exists(), world.restarts) == ([], False, 0)
    # What answered last is tried first, and alone.
    assert world.probes == [(CONTROLLER, port)]


@pytest.mark.parametrize("port", [9, SLURMCTLD])
def test_a_node_that_is_cut_off_waits_then_stops_its_jobs_and_continues_them(world: World, port: int) -> None:
    world.answering = {(CONTROLLER, port)}
    watch = start(world)
    world.look(watch)
    world.answering = set()
    world.look(watch, CLUSTER.limit_s - 1)
    assert (world.signals, world.mark.exists()) == ([], False)
    world.look(watch, 1)
    assert (world.signals, world.mark.exists()) == ([(signal.SIGSTOP, {"7", "8"})], True)
    world.answering = {(CONTROLLER, port)}
    world.look(watch, 1)
    assert (world.signals[1:], world.mark.exists()) == ([(signal.SIGCONT, {"7", "8"})], False)
    world.signals.clear()
    world.look(watch, 1)
    assert (world.signals, world.restarts) == ([], 0)


def test_jobs_that_slurm_has_requeued_are_killed_and_suspended_ones_stay_stopped(world: World) -> None:
    world.local, world.queue = {"7", "8", "9"}, "8|RUNNING\n9|SUSPENDED\n"
    watch = start(world)
    world.look(watch, CLUSTER.limit_s)
    world.answering = {(CONTROLLER, SLURMCTLD)}
    world.look(watch, 1)
    assert world.signals == [(signal.SIGSTOP, {"7", "8", "9"}), (signal.SIGKILL, {"7"}), (signal.SIGCONT, {"8"})]
    assert (world.restarts, world.mark.exists()) == (1, False)


def test_jobs_stay_stopped_until_slurmctld_answers(world: World) -> None:
    watch = start(world)
    world.look(watch, CLUSTER.limit_s)
    world.answering, world.queue = {(CONTROLLER, 9)}, None
    world.look(watch, 1)
    assert ([number for number, _ in world.signals], world.mark.exists()) == ([signal.SIGSTOP], True)
    world.queue = "7|RUNNING\n8|RUNNING\n"
    world.look(watch, 1)
    assert (world.signals[1:], world.mark.exists()) == ([(signal.SIGCONT, {"7", "8"})], False)


def test_another_process_continues_what_one_has_stopped(world: World) -> None:
    world.look(start(world), CLUSTER.limit_s)
    # The next one has just started, so that it has not waited itself.
    world.answering = {(CONTROLLER, 9)}
    world.look(start(world))
    assert world.signals == [(signal.SIGSTOP, {"7", "8"}), (signal.SIGCONT, {"7", "8"})]
    assert not world.mark.exists()


@pytest.mark.parametrize("port", [SLURMD, SSHD])
def test_a_node_is_not_cut_off_while_another_node_answers(world: World, port: int) -> None:
    world.answering = {(peer, port) for peer in PEERS}
    watch = start(world)
    world.look(watch, CLUSTER.limit_s)
    assert (world.signals, world.mark.exists()) == ([], False)
    probed = {address for address, _ in world.probes}
    assert probed <= {CONTROLLER, *PEERS}
    assert len(probed - {CONTROLLER}) <= 8


def test_a_node_without_others_is_never_cut_off(world: World) -> None:
    assert fence_service.is_cut_off(CLUSTER)
    assert not fence_service.is_cut_off(Cluster(CONTROLLER, (), 300.0))


@pytest.mark.parametrize(
    ("node", "restarts"),
    [("down|Not responding", 1), ("down*|Not responding", 1), ("down|new memory", 0), ("idle|none", 0)],
)
def test_only_a_node_that_slurm_missed_registers(world: World, node: str, restarts: int) -> None:
    """A node that a person marked DOWN would be back in service once it registers."""
    world.local, world.node = set(), f"gpu-1|{node}\n"
    watch = start(world)
    world.look(watch, CLUSTER.limit_s)
    world.answering = {(CONTROLLER, 9)}
    world.look(watch, 1)
    assert world.restarts == restarts


def test_jobs_are_stopped_and_continued_although_the_mark_cannot_be_written(world: World) -> None:
    """A folder cannot be created below a file, as a file cannot in a full /run."""
    world.mark.parent.write_text("")
    watch = start(world)
    world.look(watch, CLUSTER.limit_s)
    world.answering = {(CONTROLLER, 9)}
    world.mark.parent.unlink()
    world.look(watch, 1)
    assert world.signals == [(signal.SIGSTOP, {"7", "8"}), (signal.SIGCONT, {"7", "8"})]


def test_a_machine_that_refuses_a_connection_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert fence_service.does_answer("127.0.0.1", port)
    assert fence_service.does_answer("127.0.0.1", port)
    assert not fence_service.does_answer("no-such-machine.invalid", port)
