"""The steps of an upgrade: their order, what happens when one fails, and that no backup is ever overwritten."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.sessions import Sessions
from bootstrap.transport.base import Completed, TransportError
from bootstrap.upgrade import execute
from bootstrap.upgrade.steps import (
    BATCH,
    BUILT,
    SCRIPT,
    PublishedPackages,
    Releases,
    UpgradeStep,
    plan_return,
    plan_upgrade,
)
from cluster.inventory import Node
from tests.bootstrap.clusters import inventory, node

PACKAGES = PublishedPackages("/shared/p", "")
UP, BACK = Releases("24.11", "26.05", PACKAGES), Releases("26.05", "24.11", PACKAGES)


def shape(steps: tuple[UpgradeStep, ...]) -> list[tuple[str, str]]:
    return [(step.name, ",".join(n.name for n in step.nodes)) for step in steps]


def test_the_database_comes_first_then_the_controller_then_one_node_alone_and_login_last() -> None:
    control = [(name, "controller") for name in ("backup", "install", "slurmdbd", "slurmctld")]
    nodes = [("node", "gpu-2"), ("node", "gpu-1"), ("node", "login")]
    assert shape(plan_upgrade(inventory(), UP)) == [*control, *nodes]
    assert shape(plan_return(inventory(), BACK)) == [("restore", "controller"), *control[1:], *nodes]


def test_many_nodes_are_upgraded_in_batches_after_the_first() -> None:
    more = [node(f"gpu-{i}", "compute", i, group="gpu") for i in range(3, 2 * BATCH + 3)]
    steps = [step for step in plan_upgrade(inventory(*more), UP) if step.rejoins]
    assert [len(step.nodes) for step in steps] == [1, BATCH, BATCH, 1]


def test_the_first_node_of_a_job_is_never_newer_than_the_others() -> None:
    """Slurm runs the script of a job on its first node, and a new srun cannot start tasks on an old slurmd."""
    more = [node(f"gpu-{i}", "compute", i, group="gpu") for i in range(3, 2 * BATCH + 3)]
    members = inventory(*more)
    order = [member.name for step in plan_upgrade(members, UP) if step.rejoins for member in step.nodes]
    assert order == [member.name for member in reversed(members.compute)]


def values(step: UpgradeStep) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([A-Z]+)=(.+)$", step.script.partition("#!/bin/sh")[0]))


def test_scripts_get_the_releases_and_only_the_daemon_of_the_role() -> None:
    steps = plan_upgrade(inventory(), UP)
    assert [(v["FROM"], v["TO"]) for v in map(values, steps)] == [("24.11", "26.05")] * len(steps)
    assert [v["UNIT"] for v in map(values, steps)][-3:] == ["slurmd", "slurmd", "sackd"]
    # Going back installs the release whose backup it restores.
    assert [(v["FROM"], v["TO"]) for v in map(values, plan_return(inventory(), BACK))] == [("24.11", "24.11")] * 7


def test_packages_that_the_controller_built_are_installed_by_role_and_the_backup_is_on_its_volume() -> None:
    releases = Releases("24.11", "26.05", PACKAGES, BUILT, "/state/backups")
    steps = plan_upgrade(inventory(), releases)
    assert {values(step)["BACKUPS"] for step in (*steps, *plan_return(inventory(), releases))} == {"/state/backups"}
    assert {(values(step)["CLIENT"], values(step)["INSTALLER"]) for step in steps} == {("slurm-smd-client", "apt")}
    assert [values(step)["NAMES"] for step in steps][-2:] == [
        "'slurm-smd slurm-smd-client slurm-smd-slurmd slurm-smd-libpam-slurm-adopt'",
        "'slurm-smd slurm-smd-client slurm-smd-sackd'",
    ]
    assert {values(step)["NAMES"] for step in plan_upgrade(inventory(), UP)} == {"''"}


class Scripted:
    """A transport that records the steps of its node; a step in `failing` fails, and Slurm shows `state`."""

    def __init__(self, name: str, log: list[str], failing: str, state: str) -> None:
        self._name, self._log, self._failing, self._state = name, log, failing, state

    def run(self, script: str, **_: object) -> Completed:
        step = re.match(r"STEP=(\w+)", script)
        if step is None:
            line = f"NodeName={{}} State={self._state}\n"
            return Completed(0, line.format("gpu-1") + line.format("gpu-2"), "")
        self._log.append(f"{self._name} {step[1]}")
        return Completed(int(self._log[-1] == self._failing), "", "it broke\n")

    def put(self, *_: object) -> None: ...

    def get(self, path: str) -> bytes:
        raise NotImplementedError(path)

    def close(self) -> None: ...


def carry_out(
    failing: str = "", state: str = "IDLE Version=26.05.5", unreachable: str = "", gone: str = ""
) -> tuple[list[str], list[str]]:
    """Return the steps that ran and those that were reported as done."""
    log: list[str] = []
    reported: list[str] = []

    @contextmanager
    def watch(step: UpgradeStep) -> Iterator[None]:
        yield
        reported.append(step.name)

    def connect(member: Node) -> Scripted:
        if member.name == unreachable:
            raise TransportError(member.name, "no answer")
        return Scripted(member.name, log, failing, state)

    members = inventory()
    with Sessions(connect) as sessions:
        try:
            upgrade = execute.Upgrade("26.05", sessions, members.controller, lambda member: member.name == gone)
            upgrade.execute_steps(plan_upgrade(members, UP), watch)
        except BootstrapError as error:
            reported.append(f"{error.node} {error.step}: {error.line}")
    return log, reported


def test_steps_run_one_after_another() -> None:
    log, reported = carry_out()
    assert log == [
        *(f"controller {name}" for name in ("backup", "install", "slurmdbd", "slurmctld")),
        *("gpu-2 node", "gpu-1 node", "login node"),
    ]
    assert reported == ["backup", "install", "slurmdbd", "slurmctld", "node", "node", "node"]


def test_nothing_follows_a_step_that_failed() -> None:
    log, reported = carry_out(failing="controller slurmdbd")
    assert log[-1] == "controller slurmdbd"
    assert reported == ["backup", "install", "controller slurmdbd: it broke"]


def test_a_node_that_does_not_answer_is_found_before_anything_changes() -> None:
    assert carry_out(unreachable="gpu-2") == ([], ["gpu-2 connect: no answer"])


def test_the_next_node_waits_until_slurm_sees_the_new_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "REJOIN_TIMEOUT_S", 0.0)
    log, reported = carry_out(state="IDLE Version=24.11.5")
    assert log[-1] == "gpu-2 node"
    assert reported[-1] == "gpu-2 node: Slurm shows it as idle with version 24.11.5, expected 26.05"


def test_an_idle_node_whose_machine_was_removed_meanwhile_is_skipped() -> None:
    log, reported = carry_out(unreachable="gpu-2", gone="gpu-2")
    assert log[-2:] == ["gpu-1 node", "login node"]
    assert reported[-3:] == ["node", "node", "node"]


def test_a_machine_that_ends_during_its_step_is_skipped() -> None:
    log, reported = carry_out(failing="gpu-2 node", gone="gpu-2")
    assert log[-2:] == ["gpu-1 node", "login node"]
    assert reported[-3:] == ["node", "node", "node"]


def test_a_node_that_slurm_has_powered_off_is_not_waited_for() -> None:
    _, reported = carry_out(state="IDLE+CLOUD+POWERED_DOWN Version=24.11.5")
    assert reported[-3:] == ["node", "node", "node"]


STUBS = {
    "dpkg-query": 'grep . "$0.version"',
    "systemctl": 'echo "$@" >> "$0.log"',
    "mariadb-dump": "echo dump of $(cat ${0%/*}/dpkg-query.version)",
    "mariadb": "cat >/dev/null",
    "sync": "true",
}


class Controller:
    """A folder that stands for the controller's disk, with stubs of the commands that the backup uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, body in STUBS.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        (folder / "slurmctld").mkdir()
        (folder / "slurmctld" / "job_state").write_text("queue")
        (folder / "slurm.conf").write_text("ClusterName=toy")

    def back_up(self, installed: str) -> subprocess.CompletedProcess[str]:
        return self.run("backup", installed)

    def run(self, step: str, installed: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "dpkg-query.version").write_text(installed)
        variables = {
            "STEP": step, "FROM": "24.11", "TO": "26.05", "BACKUPS": self.folder / "backups",
            "STATE": self.folder / "slurmctld", "ETC": self.folder, "PATH": f"{self.folder}:/usr/bin:/bin",
            "CLIENT": "slurm-client", "NAMES": "''", "INSTALLER": "dpkg",
        }  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        return subprocess.run(["sh", "-c", text + SCRIPT], capture_output=True, text=True, check=False)

    @property
    def dump(self) -> str:
        file = self.folder / "backups" / "slurm-24.11" / "accounting.sql.gz"
        return subprocess.run(["gzip", "-dc", file], capture_output=True, text=True, check=True).stdout.strip()


def test_the_backup_is_taken_again_until_the_new_release_is_installed(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    assert controller.back_up("24.11.5-4").returncode == 0
    assert (tmp_path / "systemctl.log").read_text() == "stop slurmctld slurmdbd\n"
    assert controller.dump == "dump of 24.11.5-4"
    assert controller.back_up("24.11.6-1").returncode == 0
    assert controller.dump == "dump of 24.11.6-1"
    # From now on the database has the new format, and the backup is the only way back.
    assert controller.back_up("26.05.5-1").returncode == 0
    assert controller.dump == "dump of 24.11.6-1"


def test_a_restored_queue_has_nothing_of_the_newer_one_even_on_a_mounted_volume(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    assert controller.back_up("24.11.5-4").returncode == 0
    folder = (tmp_path / "slurmctld").stat().st_ino
    (tmp_path / "slurmctld" / "job_state").write_text("newer queue")
    (tmp_path / "slurmctld" / "newer_file").write_text("")
    assert controller.run("restore", "26.05.5-1").returncode == 0
    assert [file.name for file in (tmp_path / "slurmctld").iterdir()] == ["job_state"]
    assert (tmp_path / "slurmctld" / "job_state").read_text() == "queue"
    # A folder on which a volume is mounted cannot be removed and created again.
    assert (tmp_path / "slurmctld").stat().st_ino == folder


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ("26.05.5-1", "Slurm 26.05 is installed, but there is no backup of 24.11"),
        ("25.05.3-1", "package slurm-client: version 25.05.3-1 is installed, expected 24.11"),
        # The image brings Slurm in another way.
        ("", "package slurm-client: version none is installed, expected 24.11"),
    ],
)
def test_an_unexpected_release_is_not_touched(installed: str, message: str, tmp_path: Path) -> None:
    done = Controller(tmp_path).back_up(installed)
    assert (done.returncode, done.stderr.strip()) == (1, message)
    assert not (tmp_path / "systemctl.log").exists()


PACKAGE = "slurmd_26.05.5-1_amd64.deb"


def install(folder: Path, sums: str, *, names: str = "slurmd") -> subprocess.CompletedProcess[str]:
    """Run the step that installs packages from a shared folder; dpkg only records what it gets."""
    variables = {
        "STEP": "install", "FROM": "24.11", "TO": "26.05", "BACKUPS": "/nowhere", "PACKAGES": folder / "shared",
        "SUMS": f"'{sums}'", "NAMES": names, "CLIENT": "slurm-client", "INSTALLER": "dpkg", "COPY": folder / "copy",
        "PATH": f"{folder}:/usr/bin:/bin",
    }  # fmt: skip
    for name, body in {"dpkg": f'echo "$@" >> {folder}/installed; exit 1', "chmod": "true"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    # The lines that write outside of the folder are left out.
    script = re.sub(r"(?m)^.*/usr/sbin/policy-rc\.d$", "", SCRIPT).replace("/var/log", str(folder))
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    return subprocess.run(["sh", "-c", text + script], capture_output=True, text=True, check=False)


@pytest.mark.attack(1)
def test_a_package_that_a_user_changed_is_refused_by_name_before_anything_is_installed(tmp_path: Path) -> None:
    """The sums come from the operator: those of the attacker lie beside the changed package, and are not read."""
    shared = tmp_path / "shared" / "26.05"
    shared.mkdir(parents=True)
    sums = f"{sha256(b'ours').hexdigest()}  {PACKAGE}"
    (shared / PACKAGE).write_bytes(b"theirs")
    (shared / "SHA256SUMS").write_text(f"{sha256(b'theirs').hexdigest()}  {PACKAGE}\n")
    done = install(tmp_path, sums)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{shared / PACKAGE} was changed: its SHA-256 is {sha256(b'theirs').hexdigest()}.")
    assert not (tmp_path / "installed").exists()


@pytest.mark.parametrize("names", ["slurmd", "''"])
def test_only_verified_copies_are_installed(names: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "26.05"
    shared.mkdir(parents=True)
    (shared / PACKAGE).write_bytes(b"ours")
    (shared / "slurmd_99_amd64.deb").write_bytes(b"another package of the attacker")
    install(tmp_path, f"{sha256(b'ours').hexdigest()}  {PACKAGE}", names=names)
    assert (tmp_path / "installed").read_text() == f"-i --force-confold {tmp_path / 'copy' / PACKAGE}\n"
