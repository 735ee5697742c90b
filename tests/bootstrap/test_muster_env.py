"""muster-env: a user's own packages on top of the cluster's environment, without network or root."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "bootstrap/scripts/muster-env"


def build_wheel(folder: Path, name: str, version: str, requires: str = "", script: bool = False) -> Path:
    """Write a wheel with one module, named like the package, whose VERSION is the package's version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = '{version}'\n\n\ndef main():\n    import sys\n    print(sys.prefix)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-launch = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@dataclass(frozen=True)
class Cluster:
    """A shared filesystem with training environments, and the home of a user."""

    root: Path
    wheels: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def overlay(self) -> Path:
        return self.home / ".muster/env"

    def build_environment(self, key: str, *wheels: Path) -> Path:
        """Create an environment with these wheels and this Python's pip, and make it current on the cluster."""
        folder = self.root / "shared/env" / key
        venv.create(folder, with_pip=False)
        packages = next((folder / "lib").glob("python*/site-packages"))
        (packages / "pip").symlink_to(Path(pip.__file__).parent)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)
        (folder / ".complete").touch()
        link = self.root / "shared/muster/env"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        return folder

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        script = str(self.root / "shared/muster/bin/muster-env")
        completed = subprocess.run([script, *arguments], env=env, capture_output=True, text=True, cwd=self.root)
        assert not check or completed.returncode == 0, completed.stdout + completed.stderr
        return completed

    def python(self, code: str) -> str:
        """Run code as a job would after activating the overlay."""
        script = f". '{self.overlay}/bin/activate' && python -c \"{code}\""
        return subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    root = tmp_path_factory.mktemp("cluster")
    wheels = root / "wheels"
    (root / "shared/muster/bin").mkdir(parents=True)
    (root / "home").mkdir()
    wheels.mkdir()
    (root / "shared/muster/bin/muster-env").write_bytes(SCRIPT.read_bytes())
    (root / "shared/muster/bin/muster-env").chmod(0o755)
    built = Cluster(root, wheels)
    for version in ("1.0", "2.0"):
        build_wheel(wheels, "faketorch", version)
    build_wheel(wheels, "launcher", "0.5", requires="faketorch", script=True)
    build_wheel(wheels, "needy", "0.1", requires="faketorch>=2")
    built.build_environment("first", wheels / "faketorch-1.0-py3-none-any.whl")
    return built


@pytest.mark.nightly
def test_packages_are_added_listed_updated_and_removed(cluster: Cluster) -> None:
    assert cluster.run("list").stdout.startswith("muster-env: no packages added")

    added = cluster.run("add", "launcher").stdout
    assert "added to" in added
    assert "launcher==0.5" in added
    # The cluster's package is used, not copied; programs of the package run with the overlay's Python.
    assert cluster.python("import faketorch, launcher; print(faketorch.VERSION, launcher.VERSION)") == "1.0 0.5"
    assert "shared/env/first" in cluster.python("import faketorch; print(faketorch.__file__)")
    launched = subprocess.run([cluster.overlay / "bin/launcher-launch"], capture_output=True, text=True, check=True)
    assert Path(launched.stdout.strip()) == cluster.overlay.resolve()
    assert cluster.run("list").stdout.splitlines()[0] == "launcher==0.5"
    assert "torch.distributed.run" in (cluster.overlay / "bin/torchrun").read_text()

    # A package that needs another version of a cluster package is rejected.
    for package in ("needy", "faketorch==2.0"):
        refused = cluster.run("add", package, check=False)
        assert refused.returncode == 1
        assert f"cannot add {package}: it needs another version of a package" in refused.stderr

    # A new lock file: the overlay stays with the environment it was built on until the user updates it.
    second = cluster.build_environment("second", cluster.wheels / "faketorch-2.0-py3-none-any.whl")
    assert cluster.python("import faketorch; print(faketorch.VERSION)") == "1.0"
    assert "`muster-env update` rebuilds your packages" in cluster.run("list").stdout
    assert f"rebuilt on {second}: launcher==0.5" in cluster.run("update").stdout
    assert cluster.python("import faketorch, launcher; print(faketorch.VERSION, launcher.VERSION)") == "2.0 0.5"
    assert "already on the cluster's newest environment" in cluster.run("update").stdout

    assert cluster.run("remove", "launcher").stdout == "muster-env: removed: launcher\n"
    assert "launcher" not in cluster.run("list").stdout


def test_errors_name_the_fix(cluster: Cluster) -> None:
    unknown = cluster.run("install", "x", check=False)
    assert unknown.stderr == "muster-env: unknown command 'install'; allowed: add, remove, list, update\n"
    assert cluster.run("add", check=False).stderr == (
        "muster-env: name at least one package: muster-env add PACKAGE...\n"
    )
    absent = cluster.run("remove", "faketorch", check=False)
    assert absent.stderr == "muster-env: faketorch is not one of your packages; `muster-env list` shows them\n"
    assert "No matching distribution found for nowhere" in cluster.run("add", "nowhere", check=False).stderr
    assert cluster.run("--help").stdout.startswith("Adds Python packages to the cluster's training environment")
