"""The command line, without importing torch: every command prints its usage, and an error ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.launch import REPO
from trainer.__main__ import main

COMMANDS = {
    "nothing": ([], 2, "usage: python -m trainer CONFIG [key.sub=value ...]"),
    "help": (["help"], 0, "usage: python -m trainer CONFIG [key.sub=value ...]"),
    "--help": (["--help"], 0, "presets: demo, gpt2-124m,"),
    "train": (["tiny-llama", "steps=3", "--help"], 0, "python -m trainer report RUN"),
    "unknown preset": (["no-such-preset", "-h"], 0, "python -m trainer report RUN"),
    "prepare": (["prepare", "--help"], 0, "usage: python -m trainer prepare "),
    "report": (["report", "-h"], 0, "usage: python -m trainer report "),
    "profile": (["profile", "-h"], 0, "usage: python -m trainer profile [-h] [--steps STEPS] [--ranks RANKS] RUN"),
    "export": (["export", "--help"], 0, "usage: python -m trainer export [-h] [--best] FROM FOLDER"),
    "export of nothing": (["export"], 2, "the following arguments are required: FROM, FOLDER"),
    "evaluate": (["evaluate", "--help"], 0, "usage: python -m trainer evaluate [-h] [--best] [--json]"),
    "settings": (["settings", "--help"], 0, "usage: python -m trainer settings [-h] [--markdown | --from FOLDER]"),
    "settings of nothing": (["settings", "--markdwon"], 2, "unrecognized arguments: --markdwon"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_every_command_prints_its_usage(case: str, tmp_path: Path) -> None:
    arguments, status, expected = COMMANDS[case]
    code = f"import sys; sys.path.insert(0, {str(REPO)!r}); sys.modules |= dict.fromkeys(('torch', 'matplotlib')); "
    code += "from trainer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stderr
    assert expected in (done.stderr if status else done.stdout)
    assert (done.stdout if status else done.stderr) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("/usr/bin/muster", "muster train"),
        ("/muster/muster/cli.py", "muster train"),
        ("/muster/trainer/__main__.py", "python -m trainer"),
        ("-c", "python -m trainer"),
    ],
)
@pytest.mark.parametrize("command", ["prepare", "report", "profile", "export", "evaluate", "settings"])
def test_usage_names_the_program_that_was_typed(
    command: str, script: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, command])
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {program} {command} [-h]")


def test_an_unexpected_error_ends_the_process_without_waiting_for_exit_handlers(tmp_path: Path) -> None:
    """Exit handlers of libraries may hang while other ranks wait for this one to end."""
    (tmp_path / "sitecustomize.py").write_text("import atexit, time\natexit.register(time.sleep, 600)\n")
    (tmp_path / "outcome.json").write_text("{")  # unexpected: the trainer writes this file itself
    variables = {"PYTHONPATH": f"{tmp_path}:{REPO}", "MUSTER_OUTCOME_FILE": str(tmp_path / "outcome.json")}
    command = [sys.executable, "-m", "trainer", "tiny-mlp"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "JSONDecodeError" in done.stderr
