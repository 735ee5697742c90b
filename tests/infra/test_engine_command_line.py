"""Commands in messages can be typed exactly as printed, including the stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.engine.command_line import format_command, rewrite_commands

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (format_command("up", "local"), "make up"),
        (format_command("status", "x"), "make status STACK=x"),
        (format_command("ssh", "x"), "make ssh STACK=x"),
        (format_command("teardown", "x", "FORCE=1"), "make teardown FORCE=1 STACK=x"),
        (format_command("bootstrap", "local"), ".venv/bin/muster bootstrap"),
        (format_command("ssh", "x", then="scancel 30"), ".venv/bin/muster ssh --stack x -- scancel 30"),
        (format_command("ssh", "local", then="scancel 30"), ".venv/bin/muster ssh -- scancel 30"),
        (rewrite_commands("then `muster up` again", "x"), "then `make up STACK=x` again"),
        (
            rewrite_commands("another command uses it: `muster demo`", "x"),
            "another command uses it: `make demo STACK=x`",
        ),
        (rewrite_commands("`muster ssh gpu-1` and read", "x"), "`make ssh NODE=gpu-1 STACK=x` and read"),
        (rewrite_commands("the cluster muster made", "x"), "the cluster muster made"),
        (rewrite_commands("run `.venv/bin/muster bootstrap`", "x"), "run `.venv/bin/muster bootstrap`"),
        (rewrite_commands("wait, or `make up FORCE=1`", "x"), "wait, or `make up FORCE=1 STACK=x`"),
        (rewrite_commands("wait, or `make up FORCE=1`", "local"), "wait, or `make up FORCE=1`"),
        (rewrite_commands("make teardown", "x"), "make teardown STACK=x"),
        (
            rewrite_commands("`make teardown` and then `make up`", "x"),
            "`make teardown STACK=x` and then `make up STACK=x`",
        ),
        (
            rewrite_commands('`make status ARGS="--json"`; `make cost`', "x"),
            '`make status ARGS="--json" STACK=x`; `make cost STACK=x`',
        ),
        (rewrite_commands("`make teardown STACK=other`", "x"), "`make teardown STACK=other`"),
        (rewrite_commands("`make teardown FORCE=1 STACK=other`", "x"), "`make teardown FORCE=1 STACK=other`"),
        (
            rewrite_commands("`make setup`, `make upload` and `make check-all`", "x"),
            "`make setup`, `make upload` and `make check-all`",
        ),
        (rewrite_commands("nodes that make up a group", "x"), "nodes that make up a group"),
    ],
)
def test_commands_name_make_or_the_program_and_the_stack(line: str, expected: str) -> None:
    assert line == expected


@pytest.mark.parametrize("folder", ["muster/commands", "infra/engine"])
def test_messages_never_name_a_program_that_is_not_on_the_path(folder: str) -> None:
    bare_command = re.compile(r"(?<!/)\bmuster (up|status|ssh|submit|teardown|bootstrap|demo)\b")
    files = {file.name: re.sub(r'"""[\s\S]*?"""', "", file.read_text()) for file in (REPO / folder).glob("*.py")}
    assert files
    matches = {name: match[0] for name, text in files.items() if (match := bare_command.search(text))}
    assert matches == {}
