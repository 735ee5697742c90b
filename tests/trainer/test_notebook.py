"""docs/engines.ipynb has every pattern and schedule, and runs from start to end."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.trainer.launch import REPO
from trainer.config.communication import CommunicationConfig
from trainer.config.schema import ParallelConfig

NOTEBOOK = REPO / "docs" / "engines.ipynb"
# The reference, from which the others differ.
LEFT_OUT = {"backend"}


def read_code() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    ("section", "name"),
    [(CommunicationConfig, "pattern"), (ParallelConfig, "schedule")],
)
def test_the_notebook_has_every_choice_of_a_setting(section: type, name: str) -> None:
    text = "\n".join(read_code())
    choices = set(get_args(get_type_hints(section)[name])) - LEFT_OUT
    assert [choice for choice in sorted(choices) if f'"{choice}"' not in text] == []


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    outputs = [cell["outputs"] or cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert not any(outputs)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own assertions compare the losses of all engines with those of a single process."""
    monkeypatch.chdir(REPO)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for number, source in enumerate(read_code()):
        exec(compile(source, f"{NOTEBOOK.name}, cell {number}", "exec"), names)  # noqa: S102 - it is our own notebook
    assert len(list(names["RUNS"].glob("*/outcome.json"))) == 20
