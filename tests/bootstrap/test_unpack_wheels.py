"""Wheels that are unpacked: the one that fits the interpreter is chosen, and its package can be imported."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bootstrap import unpack_wheels
from bootstrap.unpack_wheels import MissingWheelError, list_packages, select_wheels
from bootstrap.wheels import LOCK, PYTHONS
from tests.harness import REPO

PACKAGES = [("pydantic-core", "2.1"), ("six", "1.17.0")]
WHEELS = [
    "pydantic_core-2.1-cp312-cp312-manylinux_2_17_x86_64.whl",
    "pydantic_core-2.1-cp313-cp313-manylinux_2_17_x86_64.whl",
    "pydantic_core-2.1-cp313-cp313t-manylinux_2_17_x86_64.whl",
    "pydantic_core-2.0-cp311-cp311-manylinux_2_17_x86_64.whl",
    "six-1.17.0-py2.py3-none-any.whl",
]


def test_the_wheel_of_the_interpreter_is_chosen() -> None:
    assert select_wheels(WHEELS, PACKAGES, (3, 13)) == [WHEELS[1], WHEELS[4]]
    assert select_wheels(WHEELS, PACKAGES, (3, 12)) == [WHEELS[0], WHEELS[4]]


def test_an_interpreter_without_a_wheel_is_an_error_that_lists_the_wheels() -> None:
    with pytest.raises(
        MissingWheelError, match=r"no wheel of pydantic-core 2\.1 for Python 3\.11; wheels of it: pydan"
    ):
        select_wheels(WHEELS, PACKAGES, (3, 11))
    with pytest.raises(MissingWheelError, match=r"no wheel of attrs 1 .*; wheels of it: none"):
        select_wheels(WHEELS, [("attrs", "1")], (3, 11))


def test_every_package_of_the_lock_file_is_listed() -> None:
    lock = (REPO / LOCK).read_text()
    packages = dict(list_packages(lock))
    assert len(packages) == sum(" \\" in line and "==" in line for line in lock.splitlines())
    assert {"pydantic", "pydantic-core", "boto3", "jinja2", "pyyaml"} <= packages.keys()
    assert all(";" not in version for version in packages.values())
    assert len(PYTHONS) > 1


def test_an_unpacked_package_can_be_imported(tmp_path: Path) -> None:
    wheels, lock, environment = tmp_path / "wheels", tmp_path / "lock", tmp_path / "venv"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "small-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("small.py", "value = 7\n")
    lock.write_text("small==1.0 \\\n    --hash=sha256:00\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    command = [sys.executable, unpack_wheels.__file__, str(wheels), str(lock), str(environment)]
    subprocess.run(command, check=True)
    shown = subprocess.run(
        [python, "-c", "import small; print(small.value)"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "7\n"
    lock.write_text("absent==2.0\n")
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stderr.startswith("no wheel of absent 2.0")) == (1, True)
