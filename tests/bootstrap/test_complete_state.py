"""A slurmctld that was killed between two renames of a state file finds the file when it starts again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bootstrap.steps.restored_jobs import COMPLETE_SCRIPT, STATE


@pytest.mark.fault(3)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"new": "2", "old": "1"}, {"": "2", "old": "1"}),
        # Killed while it wrote: the file is the last that is complete.
        ({"new": "half", "": "1", "old": "0"}, {"new": "half", "": "1", "old": "0"}),
        # The first save of all, which may not be complete.
        ({"new": "half"}, {"new": "half"}),
        ({"": "1"}, {"": "1"}),
        ({}, {}),
    ],
)
def test_a_state_file_between_two_names(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> None:
    for suffix, text in before.items():
        (tmp_path / ".".join(filter(None, ("node_state", suffix)))).write_text(text)
    subprocess.run(["sh", "-euc", COMPLETE_SCRIPT.replace(STATE, str(tmp_path))], check=True)
    shown = {path.name.removeprefix("node_state").lstrip("."): path.read_text() for path in tmp_path.iterdir()}
    assert shown == after
