"""The controller's files on the shared filesystem, of which only a part arrives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bootstrap.facts.model import Facts
from bootstrap.steps.shared_files import ENVIRONMENT_SCRIPT, plan_environment
from tests.bootstrap.clusters import desired

SCRIPT_BYTES = ENVIRONMENT_SCRIPT.stat().st_size


@pytest.mark.fault(20)
@pytest.mark.parametrize("received", [0, SCRIPT_BYTES - 1, SCRIPT_BYTES, SCRIPT_BYTES + 100])
def test_no_environment_is_built_from_a_part_of_its_lock_file(tmp_path: Path, received: int) -> None:
    target = desired()
    (action,) = plan_environment(Facts(), target.inventory.controller, target)
    script = action.script.replace(target.environment, str(tmp_path / "env"))
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        input=action.data[:received],
        capture_output=True,
        check=False,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert re.search(rb"the connection was cut before all \d+ bytes had arrived", done.stderr)
    assert list(tmp_path.iterdir()) == []
