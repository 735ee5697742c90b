"""The bundle of nodes: reproducible, and complete."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from bootstrap import bundle, wheels
from bootstrap.bundle import pack_node
from infra.targets.aws.build.bundle import NODE_FOLDERS

ROOT = Path(__file__).parents[5]
FILES = {bundle.SPEC: b"{}", bundle.INVENTORY: b"{}", bundle.CLOUD: b"{}", bundle.PUBLIC_KEY: b"k"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "pip-26.3-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "not-a-wheel.txt").write_bytes(b"")
    return tmp_path


def test_the_same_files_give_the_same_bytes(shop: Path) -> None:
    first, second = (
        pack_node(ROOT, shop, FILES, NODE_FOLDERS),
        pack_node(ROOT, shop, dict(reversed(FILES.items())), NODE_FOLDERS),
    )
    assert first.archive == second.archive
    assert first.sha256 == sha256(first.archive).hexdigest()
    assert first.sha256.startswith(first.digest)
    assert pack_node(ROOT, shop, FILES | {bundle.SPEC: b"{ }"}, NODE_FOLDERS).digest != first.digest


def test_the_bundle_contains_only_what_a_node_runs(shop: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_node(ROOT, shop, FILES, NODE_FOLDERS).archive)) as tar:
        members = tar.getmembers()
    held = {member.name for member in members}
    assert held >= {*FILES, "wheels/pip-26.3-py3-none-any.whl", wheels.LOCK, "trainer/requirements.lock"}
    assert held >= {
        "infra/targets/aws/node/set_up.py",
        "slurm/jobs/train.sbatch",
        "slurm/power/programs.py",
        "cluster/spec/model.py",
    }
    rooms = {"bootstrap", "infra", "simulator", "slurm", "trainer"}
    assert {name.split("/")[0] for name in held} == {*rooms, "cluster", "description", "wheels"}
    assert not any("__pycache__" in name for name in held)
    assert all(
        name.startswith(("infra/targets/aws/node/", "infra/targets/aws/launcher/"))
        for name in held
        if name.startswith("infra/")
    )
    assert {(m.uid, m.gid, m.mtime) for m in members} == {(0, 0, 0)}


def test_a_node_needs_only_the_bundle_to_import_its_code(shop: Path, tmp_path: Path) -> None:
    """The rest of the repository and packages without a wheel are not on the node."""
    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(pack_node(ROOT, shop, FILES, NODE_FOLDERS).archive)) as tar:
        tar.extractall(root, filter="data")
    pinned = {line.split("==")[0] for line in (ROOT / wheels.LOCK).read_text().splitlines() if "==" in line}
    brought = {"yaml": "pyyaml", "dateutil": "python-dateutil"}
    script = (
        "import sys, infra.targets.aws.node.set_up, infra.targets.aws.launcher.launcher, slurm.power.programs\n"
        "files = {n.partition('.')[0]: getattr(m, '__file__', '') or '' for n, m in sys.modules.items()}\n"
        "print(*sorted(name for name, file in files.items() if 'site-packages' in file))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Packages of this environment, and certifi, which botocore uses if it is installed.
    own = {"__editable___muster_0_1_0_finder", "_distutils_hack", "certifi"}
    assert {brought.get(name, name.replace("_", "-")) for name in set(done.stdout.split()) - own} <= pinned


def test_wheels_are_pinned_by_hash_and_downloaded_for_other_architectures(tmp_path: Path) -> None:
    command = wheels.download_command(ROOT / wheels.LOCK, tmp_path, "aarch64", "3.11")
    assert {"--require-hashes", "--only-binary", "--no-deps"} <= set(command)
    assert command[command.index("--python-version") + 1] == "3.11"
    assert "manylinux2014_aarch64" in command


def test_wheels_are_downloaded_once_and_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[str] = []

    def download(command: list[str]) -> None:
        downloads.append(command[command.index("--python-version") + 1])
        if len(downloads) == 2:
            raise wheels.WheelsError("no network")
        (Path(command[-1]) / "one.whl").write_bytes(b"")

    monkeypatch.setattr(wheels, "_download", download)
    with pytest.raises(wheels.WheelsError):
        wheels.fetch_wheels(ROOT, tmp_path)
    assert list((tmp_path / "wheels").iterdir()) == []
    folder = wheels.fetch_wheels(ROOT, tmp_path)
    assert wheels.fetch_wheels(ROOT, tmp_path) == folder
    assert downloads == ["3.11", "3.12", "3.11", "3.12", "3.13"]


def test_an_unreachable_package_index_is_reported_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(
        wheels.WheelsError, match=r"requirements\.lock: .*Fix: give this machine access to the Python package index"
    ):
        wheels._download([sys.executable, "-c", "import sys; sys.exit('no route')"])


def test_nodes_have_the_versions_that_the_tests_ran_with() -> None:
    ours, nodes = _pinned("requirements.lock"), _pinned(wheels.LOCK)
    # pip only installs the others; here it comes with Python.
    assert {name: version for name, version in nodes.items() if ours.get(name) != version}.keys() == {"pip"}


def _pinned(lock: str) -> dict[str, str]:
    lines = [line.split()[0] for line in (ROOT / lock).read_text().splitlines() if "==" in line]
    return dict(line.split("==") for line in lines)
