"""The examples run as they are: the script as a program that resumes, the notebook cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.trainer.launch import alone, assert_finished, checkpoint_steps, forked, outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = "examples.own_model"


def test_the_script_trains_and_resumes(tmp_path: Path) -> None:
    """It evaluates every 50 steps and at the end, and keeps the best checkpoint besides the newest three."""
    for steps, printed in ((100, ["50", "100"]), (130, ["130"])):
        with alone(["--steps", str(steps), "--folder", "run"], tmp_path, program=SCRIPT) as run:
            assert_finished(run)
        assert [line.split()[1] for line in run.output.splitlines()] == printed
    assert checkpoint_steps(tmp_path / "run") == [50, 100, 130]
    assert (outcome(tmp_path / "run")["outcome"], outcome(tmp_path / "run")["step"]) == ("finished", 130)


def test_two_ranks_run_the_script(tmp_path: Path) -> None:
    """One rank prints, and all of them take part in what is printed."""
    arguments = ["--steps", "100", "--folder", "run", "--strategy", "ddp"]
    with forked(2, arguments, tmp_path, program=SCRIPT) as run:
        assert_finished(run)
    assert [line.split()[1] for line in run.output.splitlines() if line.startswith("step ")] == ["50", "100"]


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = json.loads((EXAMPLES / "own_model.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102  # our own notebook
    assert names["losses"][-1] < names["losses"][0]
