"""`python -m simulator --help`: a usage line, and the commands in one column."""

from __future__ import annotations

import pytest

from simulator.__main__ import COMMANDS, main


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_command_list_is_aligned(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    usage, blank, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith("usage: python -m simulator COMMAND")
    assert not blank
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    starts = {line.index(summary) for line, summary in zip(lines, COMMANDS.values(), strict=True)}
    assert len(starts) == 1
    assert all(len(line) <= 110 for line in lines)


def test_unknown_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plam"]) == 2
    assert "simulator: command: 'plam'; allowed: plan, auto" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_a_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    _, _, description = capsys.readouterr().out.partition("\n\n")
    assert max(map(len, description.splitlines())) <= 100
