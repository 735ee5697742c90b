"""Packages that the controller stores for other machines: downloaded with real apt's options, used if they suffice."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from bootstrap import package_archive
from bootstrap.steps import packages
from bootstrap.steps.cloud import node_packages, slurm_packages
from tests.infra.targets.aws.node.clusters import EFS, LUSTRE, STORE, desired, ubuntu
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU, LOGIN, written

MIRROR = "mirror"
SUFFICIENT, TOO_OLD = "sufficient", "too old"


def list_archived() -> set[str]:
    program = written(node_packages.STEP.actions(ubuntu(), CONTROLLER, desired(EFS)), node_packages.PROGRAM)
    (line,) = (line for line in program.splitlines() if line.startswith("NAMES="))
    return set(shlex.split(line)[0].removeprefix("NAMES=").split())


@pytest.mark.parametrize("node", [LOGIN, GPU], ids=lambda node: node.role)
def test_the_archive_has_what_other_machines_install(node: object) -> None:
    (action,) = packages.STEP.actions(ubuntu(disks=(STORE,)), node, desired(EFS))  # type: ignore[arg-type]
    installed = set(action.title.split()[1:])
    assert installed - set(slurm_packages.list_names(node_packages.ROLES)) - list_archived() == set()


def test_only_machines_that_can_have_an_archive_look_for_one() -> None:
    def uses_archive(*arguments: object) -> bool:
        (action,) = packages.STEP.actions(*arguments)  # type: ignore[arg-type]
        return package_archive.ARCHIVE in action.script

    assert uses_archive(ubuntu(), GPU, desired(EFS))
    assert uses_archive(ubuntu(), LOGIN, desired(EFS))
    assert not uses_archive(ubuntu(), CONTROLLER, desired(EFS))
    assert not uses_archive(ubuntu(), GPU, desired(LUSTRE))


class Machine:
    """A folder in place of a machine's disk, with a stub of apt-get that records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.stored = folder, folder / "calls", folder / "stored.tar"
        (folder / "bin").mkdir()
        (folder / "run").mkdir()
        self.stub("store", f'[ "$2" = store ] || exit 1; echo "$1" >{folder}/name; cp "$3" {self.stored}')

    def stub(self, name: str, line: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def run(self, script: str, **values: str) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", **values}
        return subprocess.run(["sh", "-e", "-c", script], env=environment, text=True, capture_output=True, check=False)

    def install(self, outcome: str) -> tuple[int, str, list[str]]:
        """Install a package; return the exit code, the output, and the calls of apt-get."""
        refuse = f'case "$*" in *--with-source*) [ "{outcome}" = "{SUFFICIENT}" ] || exit 100 ;; esac'
        self.stub("apt-get", f'echo "$*" >>{self.calls}\n{refuse}')
        script = package_archive.render_installation(
            "apt-get", "g++", str(self.folder / "run/lock"), f"echo {MIRROR}; apt-get install g++\n"
        )
        done = self.run(script.replace("/var/cache/", f"{self.folder}/"))
        return done.returncode, done.stdout, self.calls.read_text().splitlines()

    def receive(self, *names: str) -> None:
        """Put an archive where user data puts it."""
        for name in names:
            (self.folder / name).touch()
        subprocess.run(["tar", "-cf", self.folder / "muster.tar", "-C", self.folder, *names], check=True)

    def build_slurm(self, *names: str) -> None:
        """Put the archive of Slurm's packages where the controller builds it."""
        for name in names:
            (self.folder / name).touch()
        members = [f"./{name}" for name in names]
        subprocess.run(["tar", "-cf", self.folder / "slurm.tar", "-C", self.folder, *members], check=True)

    def make_archive(self, version: str) -> subprocess.CompletedProcess[str]:
        """Run the controller's program with a mirror that has one version of a package."""
        file = f"g++_{version}_amd64.deb"
        self.stub(
            "apt-get",
            f"""echo "$*" >>{self.calls}
case "$*" in
  *--print-uris*)
    echo "'http://mirror/{file}' {file} 3 SHA256:0"
    for word; do case $word in /*.deb) echo "'file:$word' ${{word##*/}} 3 " ;; esac; done ;;
  *--download-only*)
    for word; do case $word in Dir::Cache::archives=*) touch "${{word#*=}}/{file}" ;; esac; done ;;
esac""",
        )
        return self.run(
            node_packages.SCRIPT,
            NAMES="g++ crun",
            SLURM=str(self.folder / "slurm.tar"),
            MEMBERS="*/slurm-smd_*.deb",
            WORK=str(self.folder / "work"),
            FETCH_LISTS="apt-get update",
            NAME="nodes-x",
            STORE=str(self.folder / "bin/store"),
        )

    def list_stored(self) -> list[str]:
        listed = subprocess.run(["tar", "-tf", self.stored], text=True, capture_output=True, check=True).stdout.split()
        return [name.removeprefix("./") for name in listed if name.endswith(".deb")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_installs_from_the_archive_without_lists(machine: Machine) -> None:
    machine.receive("a_1_all.deb", "b_1_all.deb")
    code, printed, calls = machine.install(SUFFICIENT)
    assert (code, printed) == (0, "")
    (call,) = calls
    folder = machine.folder / "muster-packages"
    assert call.endswith(f" install -y g++ --with-source {folder}/a_1_all.deb --with-source {folder}/b_1_all.deb")
    assert "Dir::Etc::sourcelist=/dev/null" in call
    assert not folder.exists()
    assert not (machine.folder / "muster.tar").exists()


def test_a_machine_for_which_the_archive_does_not_suffice_uses_the_mirror_and_says_so(machine: Machine) -> None:
    machine.receive("a_1_all.deb")
    code, printed, calls = machine.install(TOO_OLD)
    assert (code, len(calls), calls[-1]) == (0, 2, "install g++")
    assert printed == f"the archive of packages does not suffice for this machine; using the package mirror\n{MIRROR}\n"


@pytest.mark.parametrize("content", [None, b"", b"half of an archive"])
def test_a_machine_without_a_whole_archive_uses_the_mirror(machine: Machine, content: bytes | None) -> None:
    if content is not None:
        (machine.folder / "muster.tar").write_bytes(content)
    code, printed, calls = machine.install(SUFFICIENT)
    assert (code, calls[-1]) == (0, "install g++")
    assert "using the package mirror" in printed


def test_the_controller_stores_packages_with_their_dependencies(machine: Machine) -> None:
    done = machine.make_archive("1")
    assert done.returncode == 0, done.stderr
    assert machine.list_stored() == ["g++_1_amd64.deb"]
    assert (machine.folder / "name").read_text() == "nodes-x\n"
    update, _, download = machine.calls.read_text().splitlines()
    assert update == "update"
    assert "--no-install-recommends g++ crun" in download
    assert "Dir::State::status=" in download


@pytest.mark.parametrize("slurm", [False, True], ids=["without Slurm", "with a build of Slurm"])
def test_the_controller_downloads_only_what_has_changed(machine: Machine, slurm: bool) -> None:
    if slurm:
        machine.build_slurm("slurm-smd_1_amd64.deb")
    machine.make_archive("1")
    machine.stored.unlink()
    assert machine.make_archive("1").returncode == 0
    assert "--download-only" not in machine.calls.read_text()
    assert not machine.stored.exists()
    assert machine.make_archive("2").returncode == 0
    assert machine.list_stored() == ["g++_2_amd64.deb"]


def test_an_archive_that_could_not_be_stored_is_stored_by_the_next_run(machine: Machine) -> None:
    store = (machine.folder / "bin/store").read_text()
    machine.stub("store", "exit 1")
    assert machine.make_archive("1").returncode == 1
    (machine.folder / "bin/store").write_text(store)
    assert machine.make_archive("1").returncode == 0
    assert machine.list_stored() == ["g++_1_amd64.deb"]


def test_the_dependencies_of_slurm_s_own_packages_are_downloaded_too(machine: Machine) -> None:
    machine.build_slurm("slurm-smd_1_amd64.deb", "slurm-smd-slurmctld_1_amd64.deb")
    assert machine.make_archive("1").returncode == 0
    download = machine.calls.read_text().splitlines()[-1]
    assert "/slurm-smd_1_amd64.deb" in download
    assert "slurmctld" not in download
