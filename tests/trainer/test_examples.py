"""The examples run as they are: the script as a program that resumes, the notebook cell by cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trainer.launch import assert_finished, forked

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_script(folder: Path, steps: int) -> str:
    script = [sys.executable, str(EXAMPLES / "own_model.py"), "--steps", str(steps), "--folder", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(script, env=env, text=True, capture_output=True, check=True, timeout=300).stdout


def test_the_script_trains_and_resumes(tmp_path: Path) -> None:
    assert [line.split()[1] for line in run_script(tmp_path, 100).splitlines()] == ["50", "100"]
    assert [line.split()[1] for line in run_script(tmp_path, 150).splitlines()] == ["150"]


def test_two_ranks_run_the_script(tmp_path: Path) -> None:
    """One rank prints, and all of them take part in what is printed."""
    arguments = ["--steps", "100", "--folder", "run", "--strategy", "ddp"]
    with forked(2, arguments, tmp_path, program="examples.own_model") as run:
        assert_finished(run)
    assert [line.split()[1] for line in run.output.splitlines() if line.startswith("step ")] == ["50", "100"]


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = json.loads((EXAMPLES / "own_model.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102  # our own notebook
    assert names["losses"][-1] < names["losses"][0]
