"""The command line: fast start, errors without tracebacks, and parsing of arguments."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml

from infra.engine.stop import BAD_INPUT, Stop
from muster.cli import app
from muster.command_after_dashes import CommandAfterDashes
from muster.command_sections import SECTIONS
from muster.commands import output, train
from tests import lint
from tests.forked_muster import run_muster
from tests.harness import small_spec

REPO = Path(__file__).parents[2]
SLOW_IMPORTS = ("pulumi", "docker", "paramiko", "pydantic", "torch", "rich.live")


def muster(*arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    places = {"MUSTER_HOME": str(home), "MUSTER_STACKS": str(home / "stacks")}
    return run_muster(*arguments, cwd=REPO, env={**os.environ, **places, **env})


def start_muster(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new Python, as a shell does."""
    command = [sys.executable, "-m", "muster.cli", *arguments]
    return subprocess.run(command, cwd=REPO, text=True, capture_output=True, timeout=240)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.good.yaml").write_text(stack_file(small_spec(name="good")))
    return tmp_path


def stack_file(spec: dict[str, object]) -> str:
    return yaml.safe_dump({"config": {"muster:cluster": spec}})


def test_help_takes_less_than_a_second() -> None:
    """Measure processor time, because wall time depends on the load of the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = start_muster("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    for command in ("up", "status", "ssh", "submit", "teardown", "demo", "check", "output", "env", "cache"):
        assert command in done.stdout


def test_help_lists_each_command_in_one_section_and_on_one_line(home: Path) -> None:
    group = typer.main.get_group(app)
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(name for name, command in group.commands.items() if not command.hidden)
    lines = muster("--help", home=home, COLUMNS="80").stdout.splitlines()
    names = [line.split()[0] for line in lines[lines.index(f"{next(iter(SECTIONS))}:") :] if line.startswith(" ")]
    assert names == listed


@pytest.mark.parametrize("name", ["image", "state", "backup", "kubernetes", "cache", "rotate"])
def test_help_of_a_group_cuts_no_description(home: Path, name: str) -> None:
    assert "..." not in muster(name, "--help", home=home, COLUMNS="80").stdout.partition("Commands:")[2]


def test_help_imports_no_slow_modules() -> None:
    code = f"import sys, muster.cli; print([m for m in {SLOW_IMPORTS!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO, text=True, capture_output=True).stdout.strip() == "[]"


@pytest.mark.parametrize("engine", [{}, {"DOCKER_HOST": "unix:///nowhere/docker.sock"}], ids=["default", "unreachable"])
def test_up_reports_all_errors_of_a_spec_and_starts_nothing(home: Path, engine: dict[str, str]) -> None:
    spec = small_spec(name="bad") | {"colour": "red", "groups": {"gpu": {"count": -1}}}
    (home / "stacks" / "Pulumi.bad.yaml").write_text(stack_file(spec))
    done = muster("up", "--stack", "bad", home=home, **engine)
    assert done.returncode == 2
    assert "colour" in done.stderr
    assert "groups.gpu.count" in done.stderr
    assert "2 errors" in done.stderr
    assert not (home / "bad").exists()
    assert not (home / "state").exists()


@pytest.mark.parametrize(
    "command",
    ["up", "status", "ssh", "submit", "bootstrap", "output", "check", "cost", "demo"],
)
def test_missing_stack_error_lists_existing_stacks(home: Path, command: str) -> None:
    job = ["slurm/jobs/smoke.sbatch"] if command == "submit" else []
    done = muster(command, "--stack", "nope", *job, home=home)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"✗ stack: {home}/stacks/Pulumi.nope.yaml does not exist",
        "  fix: choose one of: good",
    ]


def test_mistyped_stack_name_gets_a_suggestion(home: Path) -> None:
    done = muster("check", "--stack", "goood", home=home)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "  fix: did you mean `good`? Otherwise choose one of: good"


def test_path_of_a_stack_file_is_answered_with_the_name_of_its_stack(home: Path) -> None:
    (home / "stacks/Pulumi.good-full.yaml").write_text((home / "stacks/Pulumi.good.yaml").read_text())
    done = muster("check", "--stack", "stacks/Pulumi.good.yaml", home=home)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "  fix: did you mean `good`? Otherwise choose one of: good, good-full"


@pytest.mark.parametrize(
    "command",
    [("ssh",), ("submit", "slurm/jobs/smoke.sbatch"), ("bootstrap",), ("output",), ("output", "ready")],
    ids=" ".join,
)
def test_cluster_that_is_not_up_is_reported(home: Path, command: tuple[str, ...]) -> None:
    done = muster(command[0], "--stack", "good", *command[1:], home=home)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["✗ stack good is not up", "  fix: make up STACK=good"]


@pytest.mark.nightly_cases("command1", "command2")
@pytest.mark.parametrize("command", [("up",), ("status",), ("teardown", "--yes"), ("cache", "list")])
def test_missing_docker_is_reported_without_traceback(home: Path, command: tuple[str, ...]) -> None:
    stack = () if command[0] == "cache" else ("--stack", "good")
    done = muster(*command, *stack, home=home, DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert done.returncode == 1
    assert "Docker" in done.stderr
    assert "/nonexistent/docker.sock" in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_docker_error_is_reported_without_traceback(home: Path) -> None:
    """A server speaks the protocol of the Docker engine and answers every request with an error."""

    class FailingEngine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"message": "no space left on device", "ApiVersion": "1.41"}'
            self.send_response(200 if self.path.endswith("/version") else 500)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), FailingEngine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.server_port}"
        done = [
            muster(*command, home=home, DOCKER_HOST=address) for command in (("up", "-s", "good"), ("cache", "list"))
        ]
        server.shutdown()
    for result in done:
        assert result.returncode == 1
        assert "no space left on device" in result.stderr
        assert "Traceback" not in result.stderr


def test_check_works_without_docker(home: Path) -> None:
    done = muster("check", "--stack", "good", home=home, DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert done.returncode == 0
    assert "4 nodes" in done.stdout


def test_broken_pipe_prints_nothing(home: Path) -> None:
    line = f"{sys.executable} -m muster.cli schema | head -n 1"
    done = subprocess.run(["bash", "-c", line], cwd=REPO, text=True, capture_output=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_unknown_output_error_lists_the_outputs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.setenv("MUSTER_STACKS", str(home / "stacks"))
    monkeypatch.setattr(output.pulumi, "outputs", lambda _stack: {"ready": True, "inventory": "{}"})
    with pytest.raises(Stop) as stop:
        output.output("good", "foo")
    assert (stop.value.what, stop.value.fix, stop.value.code) == (
        "output: stack good has no 'foo'",
        "choose one of: inventory, ready",
        BAD_INPUT,
    )


def test_version_is_printed(home: Path) -> None:
    assert muster("--version", home=home).stdout == f"muster {version('muster')}\n"


def test_status_of_a_stack_without_a_cluster_is_json(home: Path) -> None:
    done = muster("status", "--stack", "good", "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"stack": "good", "up": False, "last_up": None}


def test_check_of_a_stack_is_json(home: Path) -> None:
    done = muster("check", "--stack", "good", "--json", home=home, DOCKER_HOST="unix:///nonexistent/docker.sock")
    assert (done.returncode, json.loads(done.stdout)["valid"]) == (0, True), done.stderr


@pytest.mark.parametrize(("stack", "target"), [("local", "local"), ("aws-g6-pair", "aws")])
def test_cost_is_json(home: Path, stack: str, target: str) -> None:
    # Without credentials, prices come from the committed table.
    nowhere = str(home / "none")
    no_account = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": nowhere,
        "AWS_SHARED_CREDENTIALS_FILE": nowhere,
    }
    done = muster("cost", "--stack", stack, "--json", home=home, MUSTER_STACKS=str(REPO / "stacks"), **no_account)
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    assert cost["target"] == target
    assert 0 <= cost["usd_per_hour"]["min"] <= cost["usd_per_hour"]["max"]
    for line in cost["lines"]:
        assert 0 <= line["count_min"] <= line["count"]
        assert line["usd_per_hour"] == round(line["usd_per_hour"], 4) >= line["usd_per_hour_min"]
    assert bool(cost["lines"]) is (cost["usd_per_hour"]["max"] > 0) is (target == "aws")


def test_train_without_torch_names_the_commands_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "find_spec", lambda _name: None)
    with pytest.raises(Stop) as stop:
        train.train(["demo", "steps=9"])
    assert (stop.value.what, stop.value.code) == ("train: torch is not installed in this environment", BAD_INPUT)
    assert stop.value.fix == (
        'on the cluster: `make submit JOB=slurm/jobs/train.sbatch ARGS="demo steps=9"`; '
        "here: use an environment with `pip install '.[trainer]'`"
    )


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["tiny-lama"], "tiny-lama: neither a preset nor a file; did you mean the preset tiny-llama?"),
        (["tiny-llama", "stepz=3"], "stepz: no such setting; did you mean steps?"),
    ],
)
def test_train_without_torch_reports_wrong_settings_first(
    arguments: list[str], suggestion: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "find_spec", lambda _name: None)
    assert train.train(arguments) == BAD_INPUT
    assert suggestion in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_command_without_a_job_is_advised_on_a_node(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "find_spec", lambda _name: None)
    with pytest.raises(Stop) as stop:
        train.train([command, "runs/a", "out"])
    assert stop.value.fix == (
        f"on the cluster: `.venv/bin/muster ssh -- /shared/muster/trainer/run {command} runs/a out`; "
        "here: use an environment with `pip install '.[trainer]'`"
    )


@pytest.mark.parametrize(
    ("arguments", "on_cluster"),
    [
        (["tiny-llama", "steps=9"], 'make submit JOB=slurm/jobs/train.sbatch ARGS="tiny-llama steps=9"'),
        (["export", "runs/a", "out"], "/shared/muster/trainer/run export runs/a out"),
        (["evaluate", "runs/a"], "/shared/muster/trainer/run evaluate runs/a"),
    ],
)
def test_trainer_without_torch_names_the_commands_that_work(
    tmp_path: Path, arguments: list[str], on_cluster: str
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPO}"},
        text=True,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"trainer: torch is not installed in this environment; on the cluster: `{on_cluster}`; "
        "here: use an environment with `pip install '.[trainer]'`\n",
    )


@pytest.mark.parametrize("command", ["trainer settings", "simulator --help"])
def test_broken_pipe_of_other_programs_prints_nothing(command: str) -> None:
    line = f"set -o pipefail; {sys.executable} -u -m {command} | true"
    done = subprocess.run(["bash", "-c", line], cwd=REPO, text=True, capture_output=True)
    assert (done.returncode, done.stderr) in ((0, ""), (1, ""))


def test_help_of_plan_is_the_simulators(home: Path) -> None:
    done = muster("plan", "--help", home=home)
    assert done.returncode == 0, done.stderr
    assert "--tokens" in done.stdout
    assert "--stack" in done.stdout


def test_examples_in_the_help_of_predict_name_muster(home: Path) -> None:
    assert "\n  muster predict llama-8b " in muster("predict", "--help", home=home).stdout


# Completion derives its variables from the name of the program.
COMPLETION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


def test_completion_prints_a_script_for_the_shell(home: Path) -> None:
    done = muster("--show-completion", "bash", home=home, **COMPLETION)
    assert done.returncode == 0, done.stderr
    assert "_MUSTER_COMPLETE=complete_bash" in done.stdout


def test_completion_lists_the_stacks(home: Path) -> None:
    words = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": "muster check --stack ", "COMP_CWORD": "3"}
    done = muster(home=home, **COMPLETION, **words)
    assert done.stdout.split() == ["good"]


@pytest.mark.parametrize(
    ("arguments", "node", "user", "command"),
    [
        ([], None, None, []),
        (["gpu-1"], "gpu-1", None, []),
        (["--", "squeue", "-l"], None, None, ["squeue", "-l"]),
        (["gpu-1", "--user", "root", "--", "id", "--", "-u"], "gpu-1", "root", ["id", "--", "-u"]),
    ],
)
def test_ssh_passes_on_arguments_after_dashes(
    arguments: list[str], node: str | None, user: str | None, command: list[str]
) -> None:
    ssh = typer.main.get_command(app).commands["ssh"]  # type: ignore[attr-defined]  # the application is a group of commands
    assert isinstance(ssh, CommandAfterDashes)
    context = ssh.make_context("ssh", list(arguments))
    assert (context.params["node"], context.params["user"], context.obj) == (node, user, command)


@pytest.mark.parametrize(
    ("command", "passed_on"),
    [
        (("cost", "ARGS=--json"), "cost --stack local --json"),
        (("check", "STACK="), "check --stack local"),
        (("status", "STACK=mine"), "status --stack mine"),
    ],
)
def test_make_passes_on_stack_and_arguments(command: tuple[str, ...], passed_on: str) -> None:
    # Under `make test`, make would print the name of the folder as its last line.
    line = ["make", "-n", "--no-print-directory", *command]
    lines = subprocess.run(line, cwd=REPO, text=True, capture_output=True).stdout.splitlines()
    assert lines[-1].split() == [".venv/bin/muster", *passed_on.split()]


def test_make_help_lists_the_targets() -> None:
    lines = subprocess.run(
        ["make", "--no-print-directory"], cwd=REPO, text=True, capture_output=True
    ).stdout.splitlines()
    daily = "setup demo up status ssh submit fabric teardown check cost plan"
    rare = "test test-quick test-nightly lint bench bench-simulator bench-trainer soak golden clean-cache"
    listed = {line.split()[0] for line in lines if line.strip()}
    assert set(f"{daily} {rare}".split()) <= listed
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize(
    ("name", "content", "script"),
    [
        ("a.sh", "", True),
        ("a.sbatch", "", True),
        ("run", "#!/usr/bin/env bash\n", True),
        ("run", "#!/bin/sh -e\n", True),
        ("run", "#!/usr/bin/env python3\n", False),
        ("run", "text\n", False),
    ],
)
def test_shell_scripts_are_recognized(tmp_path: Path, name: str, content: str, script: bool) -> None:
    (tmp_path / name).write_text(content)
    assert lint.is_script(tmp_path / name) is script
