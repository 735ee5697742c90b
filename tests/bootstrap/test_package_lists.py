"""Package lists: fetched once for the steps of a set-up, and again if they are old or the sources have changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bootstrap.action import FETCH_LISTS, LISTS_MAX_AGE_MIN
from tests.harness import wait_until


class Machine:
    """A folder in place of a machine's disk, with a stub of apt-get that records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.sources, self.fetched = folder / "etc/apt/sources.list.d", folder / "run/muster/package-lists"
        self.sources.mkdir(parents=True)
        (self.sources / "ubuntu.sources").touch()
        self.set_code(0)
        self.age(self.sources, self.sources / "ubuntu.sources")

    def set_code(self, code: int, wait_for: str = "/dev/null") -> None:
        stub = self.folder / "apt-get"
        stub.write_text(f'#!/bin/sh\necho "$*" >>{self.calls}\ncat {wait_for}\nexit {code}\n')
        stub.chmod(0o755)

    def age(self, *paths: Path, minutes: float = 60) -> None:
        """Make files older than they are."""
        for path in paths:
            changed = path.stat().st_mtime - minutes * 60
            os.utime(path, (changed, changed))

    def fetch(self) -> int:
        """Run the script and return how often lists were fetched."""
        self.calls.write_text("")
        if code := self.start().wait():
            raise subprocess.CalledProcessError(code, "sh")
        return self.count_fetches()

    def start(self) -> subprocess.Popen[bytes]:
        script = FETCH_LISTS.replace("/run/", f"{self.folder}/run/").replace("/etc/", f"{self.folder}/etc/")
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.Popen(["sh", "-e", "-c", script], env={"PATH": path})

    def count_fetches(self) -> int:
        return self.calls.read_text().count(" update\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_later_steps_of_a_set_up_use_the_lists_of_the_first(machine: Machine) -> None:
    assert [machine.fetch() for _ in range(3)] == [1, 0, 0]


def test_lists_are_fetched_again_after_a_source_was_added_or_removed(machine: Machine) -> None:
    machine.fetch()
    machine.age(machine.fetched, minutes=1)
    added = machine.sources / "muster-lustre.list"
    added.touch()
    assert [machine.fetch(), machine.fetch()] == [1, 0]
    machine.age(machine.fetched, minutes=1)
    added.unlink()
    assert machine.fetch() == 1


def test_old_lists_are_fetched_again(machine: Machine) -> None:
    """A later `up` installs what is new since: packages of old lists may be gone from the mirror."""
    machine.fetch()
    machine.age(machine.fetched, minutes=LISTS_MAX_AGE_MIN + 1)
    assert machine.fetch() == 1


def test_lists_that_could_not_be_fetched_fail_the_step_and_are_fetched_again(machine: Machine) -> None:
    machine.set_code(100)
    with pytest.raises(subprocess.CalledProcessError):
        machine.fetch()
    machine.set_code(0)
    assert machine.fetch() == 1


def test_a_step_waits_for_lists_that_user_data_is_fetching(machine: Machine) -> None:
    gate = machine.folder / "gate"
    os.mkfifo(gate)
    machine.set_code(0, wait_for=str(gate))
    machine.calls.touch()
    early = machine.start()
    wait_until(lambda: machine.count_fetches() == 1, "lists are being fetched")
    step = machine.start()
    with pytest.raises(subprocess.TimeoutExpired):
        step.wait(0.3)
    gate.write_text("")
    assert (early.wait(), step.wait()) == (0, 0)
    assert machine.count_fetches() == 1
