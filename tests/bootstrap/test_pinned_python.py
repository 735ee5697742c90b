"""A real relocatable Python in training-env.sh: it runs where it was unpacked, and finds its own headers there."""

from __future__ import annotations

import platform
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bootstrap.training_environment import list_archives
from cluster.catalog.interpreter import PYTHON
from tests.bootstrap.test_training_env import DEST, Box, box, boxes, lock, wheel  # noqa: F401  # fixtures

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

# The image's own Python in the folders of the pinned archive. Its headers are not in the image.
PACK = """
mkdir -p /tmp/build/python/bin /tmp/build/python/lib /tmp/build/python/include/python3.13
cp /usr/bin/python3.13 /tmp/build/python/bin/python3.13
ln -s python3.13 /tmp/build/python/bin/python3
cp -a /usr/lib/python3.13 /tmp/build/python/lib/
: >/tmp/build/python/include/python3.13/Python.h
tar -C /tmp/build --exclude=__pycache__ -cz -f /tmp/python.tar.gz python
echo "$(uname -m) $(sha256sum </tmp/python.tar.gz | cut -d ' ' -f 1) file:///tmp/python.tar.gz" >/tmp/archives
"""
# Prints the version, the interpreter's folder, and that of its headers as a compiler gets it.
CHECK = """
import ctypes, lzma, platform, ssl, sys, sysconfig, tiny_part
from pathlib import Path
include = Path(sysconfig.get_paths()["include"])
assert (include / "Python.h").exists(), include
print(platform.python_version(), sys.base_prefix, include)
"""


def check_python(node: Box, archives: str) -> str:
    """Build the environment from an archive, check that its Python runs in its own folders, and return its version."""
    done = node.make(archives)
    assert done.returncode == 0, done.stderr
    shown = node.sh(f"{DEST}/bin/python - <<'END'\n{CHECK}\nEND")
    assert shown.returncode == 0, shown.stderr
    version, base, include = shown.stdout.split()
    assert (base, include) == (f"{DEST}/python", f"{DEST}/python/include/python3.13")
    return version


@pytest.mark.timeout(600)
def test_a_python_that_was_moved_runs_in_its_own_folders(request: pytest.FixtureRequest) -> None:
    moved: Box = request.getfixturevalue("box")
    assert moved.sh(PACK).returncode == 0
    assert check_python(moved, "/tmp/archives").startswith("3.13.")


@pytest.mark.timeout(600)
def test_the_pinned_python_is_downloaded_and_runs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    host = urlsplit(PYTHON.archives[platform.machine()].url).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        pytest.skip(f"{host}, which has the pinned Python, cannot be reached: {error}")
    (tmp_path / "archives").write_bytes(list_archives(PYTHON))
    folder = request.getfixturevalue("wheel").parent
    mounts = ["-v", f"{folder}:/wheels:ro", "-v", f"{tmp_path}:/archives:ro"]
    offline_pip = ["-e", "PIP_FIND_LINKS=/wheels", "-e", "PIP_NO_INDEX=1"]
    downloading = Box(request.getfixturevalue("lock"), "--network", "host", *mounts, *offline_pip)
    request.getfixturevalue("boxes").append(downloading)
    assert check_python(downloading, "/archives/archives") == PYTHON.version
