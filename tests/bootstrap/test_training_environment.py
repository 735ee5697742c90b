"""The folder of the training environment changes with everything that determines its content."""

from __future__ import annotations

from hashlib import sha256

from bootstrap.training_environment import environment_folder, list_archives
from cluster.catalog.interpreter import PYTHON


def test_the_folder_changes_with_the_lock_file_and_with_the_interpreter() -> None:
    plain = environment_folder("/shared", b"torch", None)
    # setup fills the cache volume of local clusters under this name.
    assert plain == f"/shared/env/{sha256(b'torch').hexdigest()[:16]}"
    pinned = environment_folder("/shared", b"torch", PYTHON)
    assert len({plain, pinned, environment_folder("/shared", b"numpy", PYTHON)}) == 3


def test_archives_are_one_line_per_machine() -> None:
    lines = list_archives(PYTHON).decode().splitlines()
    assert [line.split()[0] for line in lines] == ["aarch64", "x86_64"]
    assert all(len(line.split()) == 3 and len(line.split()[1]) == 64 for line in lines)
    assert all(PYTHON.version in line for line in lines)
    assert list_archives(None) == b""
