"""training-env.sh in a real node container: it builds once, recovers from a kill, and reports errors in one line."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
IMAGE = "muster-node:24.11"
DEST = "/shared/env/key"

pytestmark = pytest.mark.engine


class Box:
    """A node container with the script, and a lock file of one small package."""

    def __init__(self, lock: Path, *options: str) -> None:
        self.name = f"muster-test-env-{uuid.uuid4().hex[:8]}"
        mounts = [f"{REPO}/bootstrap/scripts:/scripts:ro", f"{lock}:/lock:ro"]
        docker(
            "run", "-d", "--rm", "--name", self.name, "--label", "muster.cluster=test-env", "--tmpfs", "/run",
            *(part for mount in mounts for part in ("-v", mount)), *options, IMAGE, "sleep", "600",
        )  # fmt: skip

    def sh(self, script: str) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.name, "sh", "-c", script, check=False)

    def make(self, archives: str = "") -> subprocess.CompletedProcess[str]:
        return self.sh(f"/scripts/training-env.sh /lock {DEST} {archives}")


def docker(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *args], capture_output=True, text=True, check=check, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a small wheel, so that installing the lock file needs no network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        "import base64, hashlib, zipfile\n"
        "files = {'tiny_part/__init__.py': 'answer = 42', 'tiny_part-1.0.dist-info/METADATA': "
        "'Metadata-Version: 2.1\\nName: tiny-part\\nVersion: 1.0\\n', 'tiny_part-1.0.dist-info/WHEEL': "
        "'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}\n"
        "record = ''.join(f'{name},,\\n' for name in [*files, 'tiny_part-1.0.dist-info/RECORD'])\n"
        "files['tiny_part-1.0.dist-info/RECORD'] = record\n"
        "with zipfile.ZipFile('tiny_part-1.0-py3-none-any.whl', 'w') as archive:\n"
        "    [archive.writestr(name, text) for name, text in files.items()]\n"
    )
    subprocess.run(["python3", "-c", build], cwd=folder, check=True)
    return folder / "tiny_part-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def lock(wheel: Path) -> Path:
    digest = subprocess.run(["sha256sum", wheel], capture_output=True, text=True, check=True).stdout.split()[0]
    path = wheel.parent / "lock"
    path.write_text(f"tiny-part==1.0 --hash=sha256:{digest}\n")
    return path


@pytest.fixture
def boxes() -> Iterator[list[Box]]:
    started: list[Box] = []
    yield started
    for box in started:
        docker("rm", "-f", box.name, check=False)


def make_box(lock: Path, wheel: Path) -> Box:
    """Start a container whose pip installs from the folder of the wheel."""
    options = ["--network", "none", "-v", f"{wheel.parent}:/wheels:ro"]
    return Box(lock, *options, "-e", "PIP_FIND_LINKS=/wheels", "-e", "PIP_NO_INDEX=1")


@pytest.fixture
def box(lock: Path, wheel: Path, boxes: list[Box]) -> Box:
    boxes.append(make_box(lock, wheel))
    return boxes[0]


@pytest.fixture(scope="module")
def built(lock: Path, wheel: Path) -> Iterator[tuple[Box, str]]:
    """Return a container in which two runs at once replaced an incomplete environment, and their output."""
    box = make_box(lock, wheel)
    box.sh(f"mkdir -p {DEST}/lib && echo broken > {DEST}/lib/half")
    both = box.sh(f"for i in 1 2; do /scripts/training-env.sh /lock {DEST} & done; wait")
    yield box, both.stdout + both.stderr
    docker("rm", "-f", box.name, check=False)


def test_concurrent_runs_build_the_environment_once(built: tuple[Box, str]):
    _, output = built
    assert output.count(f"training-env: ready: {DEST}, ") == 1
    assert output.count("training-env: reused") == 1
    assert "waiting for it" in output


def test_a_built_environment_is_reused(built: tuple[Box, str]):
    box, _ = built
    assert box.make().stdout == f"training-env: reused {DEST}\n"
    assert box.sh(f"{DEST}/bin/python -c 'import tiny_part; print(tiny_part.answer)'").stdout == "42\n"


def test_everyone_can_read_and_only_root_can_write_the_environment(built: tuple[Box, str]):
    box, _ = built
    assert box.sh(f"find {DEST} -perm /022 ! -type l -o ! -user root").stdout == ""
    assert box.sh(f"runuser -u nobody -- {DEST}/bin/python -c 'import tiny_part'").returncode == 0
    assert box.sh(f"find {DEST}/lib -path '*tiny_part*' -name '*.pyc'").stdout != ""
    assert box.sh(f"find {DEST} -name .tmp").stdout == ""


def test_an_incomplete_environment_is_rebuilt(built: tuple[Box, str]):
    box, output = built
    assert f"removing the remains of an interrupted run in {DEST}" in output
    assert box.sh(f"ls {DEST}/lib").stdout.split() == ["python3.13"]


def test_a_run_recovers_from_a_killed_one(box: Box):
    box.sh(
        f"setsid /scripts/training-env.sh /lock {DEST} >/dev/null 2>&1 & leader=$!; "
        f"until [ -e {DEST}/pyvenv.cfg ]; do sleep 0.02; done; kill -9 -- -$leader"
    )
    assert box.sh(f"test -e {DEST}/.complete").returncode != 0
    assert box.make().returncode == 0
    assert box.sh(f"{DEST}/bin/python -c 'import tiny_part'").returncode == 0


def test_a_terminated_run_leaves_nothing_behind(box: Box):
    done = box.sh(
        f"/scripts/training-env.sh /lock {DEST} >/dev/null 2>&1 & "
        f"until [ -e {DEST}/pyvenv.cfg ]; do sleep 0.02; done; kill -TERM $!; wait $!"
    )
    assert done.returncode == 143
    assert box.sh("ls -A /shared/env").stdout.split() == ["key.lock"]


def test_a_full_disk_is_reported_in_one_line(lock: Path, boxes: list[Box]):
    boxes.append(Box(lock, "--network", "none", "--tmpfs", "/shared/env:size=4m"))
    done = boxes[0].make()
    assert done.returncode == 1
    assert done.stderr.startswith("training-env: disk full: /shared/env has 0 MB left; free space")
    assert len(done.stderr.splitlines()) == 1
    assert boxes[0].sh("ls -A /shared/env").stdout.split() == ["key.lock"]


def test_a_missing_network_is_reported_in_one_line(lock: Path, boxes: list[Box]):
    boxes.append(Box(lock, "--network", "none"))
    done = boxes[0].make()
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "make setup" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert boxes[0].sh("ls -A /shared/env").stdout.split() == ["key.lock"]


def test_a_wheel_with_a_wrong_hash_is_rejected(tmp_path: Path, wheel: Path, boxes: list[Box]):
    bad = tmp_path / "lock"
    bad.write_text(f"tiny-part==1.0 --hash=sha256:{'0' * 64}\n")
    boxes.append(make_box(bad, wheel))
    done = boxes[0].make()
    assert done.returncode == 1
    assert "pip install failed" in done.stderr
    assert boxes[0].sh("ls -A /shared/env").stdout.split() == ["key.lock"]


def test_a_missing_lock_file_is_reported(box: Box):
    done = box.sh(f"/scripts/training-env.sh /nowhere {DEST}")
    assert (done.returncode, done.stderr) == (1, "training-env: cannot read lock file /nowhere\n")


# Packs a stand-in for the pinned Python: its interpreter is the image's own, in the folders of a real archive.
PACK = """
mkdir -p /tmp/build/python/bin /tmp/build/python/lib /tmp/build/python/include/python3.13
printf '#!/bin/sh\\nexec /usr/bin/python3 "$@"\\n' >/tmp/build/python/bin/python3
chmod +x /tmp/build/python/bin/python3
: >/tmp/build/python/include/python3.13/Python.h
tar -C /tmp/build -czf /tmp/python.tar.gz python
echo "$(uname -m) $(sha256sum </tmp/python.tar.gz | cut -d ' ' -f 1) file:///tmp/python.tar.gz" >/tmp/archives
"""


@pytest.mark.nightly
def test_a_pinned_python_with_headers_becomes_part_of_the_environment(box: Box):
    box.sh(PACK)
    done = box.make("/tmp/archives")
    assert done.returncode == 0, done.stderr
    assert (
        box.sh(f"test -e {DEST}/python/include/python3.13/Python.h && test -x {DEST}/python/bin/python3").returncode
        == 0
    )
    assert box.sh(f"{DEST}/bin/python -c 'import tiny_part'").returncode == 0
    # The machine keeps a copy, so a second environment needs no download.
    box.sh(f"rm -rf {DEST} /tmp/python.tar.gz")
    assert box.make("/tmp/archives").returncode == 0


def test_a_pinned_python_with_another_checksum_is_rejected(box: Box):
    box.sh(PACK)
    box.sh("echo more >>/tmp/python.tar.gz")
    done = box.make("/tmp/archives")
    assert done.returncode == 1
    assert done.stderr.startswith("training-env: file:///tmp/python.tar.gz has sha256 ")
    assert box.sh("ls -A /shared/env; ls /opt/muster/python 2>/dev/null").stdout.split() == ["key.lock"]


def test_a_machine_without_a_pinned_python_is_told_which_machines_have_one(box: Box):
    box.sh("echo 'vax 0 file:///none' >/tmp/archives")
    done = box.make("/tmp/archives")
    machine = box.sh("uname -m").stdout.strip()
    assert (done.returncode, done.stderr) == (1, f"training-env: no pinned Python for {machine}; allowed: vax\n")
