"""Every hint is a line that a person can type as it stands, with the stack it is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.engine.typed import retyped, typed

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (typed("up", "local"), "make up"),
        (typed("status", "x"), "make status STACK=x"),
        (typed("ssh", "x"), "make ssh STACK=x"),
        (typed("teardown", "x", "FORCE=1"), "make teardown FORCE=1 STACK=x"),
        (typed("bootstrap", "local"), ".venv/bin/muster bootstrap"),
        (typed("ssh", "x", then="scancel 30"), ".venv/bin/muster ssh --stack x -- scancel 30"),
        (typed("ssh", "local", then="scancel 30"), ".venv/bin/muster ssh -- scancel 30"),
        (retyped("then `muster up` again", "x"), "then `make up STACK=x` again"),
        (retyped("`muster ssh gpu-1` and read", "x"), "`make ssh NODE=gpu-1 STACK=x` and read"),
        (retyped("the cluster muster made", "x"), "the cluster muster made"),
    ],
)
def test_the_line_for_a_command(line: str, wanted: str) -> None:
    assert line == wanted


@pytest.mark.parametrize("room", ["commands", "engine"])
def test_no_message_names_a_program_that_is_not_on_the_path(room: str) -> None:
    bare = re.compile(r"(?<!/)\bmuster (up|status|ssh|submit|teardown|bootstrap|demo)\b")
    files = {
        file.name: re.sub(r'"""[\s\S]*?"""', "", file.read_text()) for file in (REPO / "infra" / room).glob("*.py")
    }
    assert [(name, found[0]) for name, text in files.items() if (found := bare.search(text))] == []
