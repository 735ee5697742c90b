"""Make targets set up a fresh clone once, and pass their variables on to the programs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
# Replaces `python3 -m setup`: logs its arguments and creates a `muster` that prints the arguments it gets.
PYTHON = """\
#!/bin/sh
echo "$*" >> calls
echo "venv      done"
mkdir -p .venv/bin
cat > .venv/bin/muster <<END
#!/bin/sh
# $PWD/.venv/bin/python
if [ "\\$1" = setup-phases ]; then cat phases; exit; fi
for word; do echo "<\\$word>"; done
END
cp .venv/bin/muster .venv/bin/python
chmod +x .venv/bin/muster .venv/bin/python
"""
RUN = ("MODEL=llama-8b", "TOKENS=1e12")
VENV = "-m setup apt venv\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(REPO / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "target", ["status", "ssh", "submit", "teardown", "check", "cost", "plan", "env", "golden", "lint", "test-quick"]
)
def test_a_fresh_clone_creates_its_environment_once(clone: Path, target: str) -> None:
    make(clone, target, *RUN)
    make(clone, target, *RUN)
    assert calls(clone) == VENV


@pytest.mark.parametrize("target", ["demo", "test", "test-nightly", "bench", "bench-aws", "bench-trainer", "soak"])
def test_targets_that_create_clusters_run_the_complete_set_up(clone: Path, target: str) -> None:
    make(clone, target)
    assert calls(clone).startswith("-m setup\n")


@pytest.mark.parametrize("phases", ["", "apt venv pulumi"])
def test_up_runs_the_phases_that_the_stack_needs(clone: Path, phases: str) -> None:
    (clone / "phases").write_text(f"{phases}\n")
    assert make(clone, "up", "STACK=mine").endswith("<up>\n<--stack>\n<mine>\n")
    assert calls(clone) == VENV + f"-m setup {phases}".rstrip() + "\n"


@pytest.mark.parametrize("target", ["setup", "demo"])
def test_set_up_leaves_the_image_of_the_default_release_out_on_request(clone: Path, target: str) -> None:
    make(clone, target, "SLURM=24.11")
    assert "-m setup --slurm 24.11\n" in calls(clone)


def test_up_stops_if_the_stack_is_unknown(clone: Path) -> None:
    assert run_make(clone, "up", "STACK=unknown").returncode != 0
    assert calls(clone) == VENV


@pytest.mark.parametrize("arguments", [(), ("help",)])
def test_help_needs_no_environment(clone: Path, arguments: tuple[str, ...]) -> None:
    assert "teardown" in make(clone, *arguments)
    assert calls(clone) == ""


def test_help_has_escape_codes_only_on_a_terminal(clone: Path) -> None:
    assert "\x1b" not in make(clone, "help")
    terminal, end = pty.openpty()
    command = ["make", "--no-print-directory", "help"]
    process = subprocess.Popen(command, cwd=clone, env={**_environment(), "COLUMNS": "200"}, stdout=end)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 4096):
            shown += chunk
    os.close(terminal)
    assert process.wait(120) == 0
    assert b"\x1b[1mteardown        \x1b[0m" in shown


def test_the_programs_in_the_makefile_exist() -> None:
    text = (REPO / "Makefile").read_text()
    modules = re.findall(r"-m ((?:setup|tests|benchmarks|release|trainer|simulator)[\w.]*)", text)
    assert len(modules) > 5
    for name in modules:
        path = REPO / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


@pytest.mark.parametrize(("target", "option"), [("test-quick", "--quick"), ("test-nightly", "--nightly")])
def test_the_test_targets_select_their_layers(clone: Path, target: str, option: str) -> None:
    assert f"<-m>\n<tests.run>\n<{option}>\n" in make(clone, target)


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_newer_lock_or_project_file_updates_the_environment(clone: Path, name: str) -> None:
    make(clone, "check")
    later = time.time() + 5
    os.utime(clone / name, (later, later))
    make(clone, "check")
    assert calls(clone) == VENV * 2


def test_a_moved_clone_updates_its_environment(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    make(clone, "check")
    moved = tmp_path_factory.mktemp("other") / "place"
    shutil.copytree(clone, moved)
    make(moved, "check")
    make(moved, "check")
    assert calls(moved) == VENV * 2


def test_env_does_not_print_the_output_of_set_up(clone: Path) -> None:
    assert make(clone, "-s", "env") == "<env>\n"


def test_a_job_path_may_contain_a_space(clone: Path) -> None:
    assert make(clone, "submit", "JOB=my jobs/a.sbatch") == "<submit>\n<--stack>\n<local>\n<my jobs/a.sbatch>\n"


def test_submit_passes_nodes_and_arguments(clone: Path) -> None:
    printed = make(clone, "submit", "JOB=a.sbatch", "NODES=4", "ARGS=llama-8b steps=9")
    assert printed.split() == [
        "<submit>",
        "<--stack>",
        "<local>",
        "<--nodes>",
        "<4>",
        "<a.sbatch>",
        "<llama-8b>",
        "<steps=9>",
    ]


def test_plan_passes_its_arguments_to_the_simulator(clone: Path) -> None:
    arguments = ["STACK=aws-p5en-lustre", "MODEL=llama-8b", "TOKENS=1e12", "ARGS=--nodes 1..16 --deadline 14d"]
    expected = "plan --stack aws-p5en-lustre --model llama-8b --tokens 1e12 --nodes 1..16 --deadline 14d"
    assert make(clone, "plan", *arguments) == "".join(f"<{word}>\n" for word in expected.split())


@pytest.mark.parametrize("arguments", [(), RUN[:1], RUN[1:], ("ARGS=--nodes 4",)])
def test_plan_names_the_missing_make_variables(clone: Path, arguments: tuple[str, ...]) -> None:
    done = run_make(clone, "plan", *arguments)
    assert done.returncode != 0
    assert "MODEL= and TOKENS= are required; for example: make plan STACK=aws-p5en-lustre " in done.stderr
    assert "simulator" not in done.stdout
    assert calls(clone) == "", "no environment is created for an incomplete command"


@pytest.mark.parametrize("arguments", ["--help", "--model llama-8b --tokens 1e12"])
def test_plan_accepts_simulator_options_in_args(clone: Path, arguments: str) -> None:
    assert make(clone, "plan", f"ARGS={arguments}").endswith("".join(f"<{word}>\n" for word in arguments.split()))


def test_the_example_in_the_help_of_plan_works(clone: Path) -> None:
    line = next(line for line in make(clone, "help").splitlines() if "choose machines for a run" in line)
    arguments = line.split("(")[1].rstrip(")").split()
    stack = dict(word.split("=") for word in arguments)["STACK"]
    assert "target: aws" in (REPO / "stacks" / f"Pulumi.{stack}.yaml").read_text()
    assert "<llama-8b>\n<--tokens>\n<1e12>" in make(clone, "plan", *arguments)


def test_release_without_a_key_is_refused_at_once(clone: Path) -> None:
    done = run_make(clone, "release")
    assert done.returncode != 0
    assert "KEY= is required; for example: make release KEY=~/.ssh/id_ed25519" in done.stderr
    assert calls(clone) == ""


def test_restore_without_an_archive_is_refused_at_once(clone: Path) -> None:
    done = run_make(clone, "restore")
    assert done.returncode != 0
    assert "ARCHIVE= is required; for example: make restore ARCHIVE=FILE; `.venv/bin/muster backup list`" in done.stderr
    assert calls(clone) == ""


def test_release_and_its_verification_get_their_arguments(clone: Path) -> None:
    words = "<-m>\n<release>\n<build>\n<--key>\n<~/.ssh/my key>\n<--no-audit>\n"
    assert make(clone, "release", "KEY=~/.ssh/my key", "ARGS=--no-audit").endswith(words)
    assert make(clone, "verify-release").endswith("<release>\n<verify>\n<dist>\n")
    assert make(clone, "verify-release", "FROM=my folder").endswith("<verify>\n<my folder>\n")


def test_lint_installs_shellcheck_if_it_is_missing(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("make", "sh", "bash", "head", "grep", "mkdir", "touch", "cp", "chmod"):
        (tools / name).symlink_to(shutil.which(name) or name)
    make(clone, "lint", PATH=str(tools))
    assert calls(clone) == f"{VENV}-m setup apt\n"


def test_make_test_installs_a_browser(clone: Path) -> None:
    make(clone, "test")
    assert "-m setup browser\n" in calls(clone)
    assert "-m setup fault-tools\n" not in calls(clone)


def test_the_nightly_tests_install_what_only_they_need(clone: Path) -> None:
    make(clone, "test-nightly")
    phases = ("fault-tools", "kubernetes", "trainer-image", "virtual-machines")
    assert "".join(f"-m setup {phase}\n" for phase in phases) in calls(clone)


def make(clone: Path, *arguments: str, **variables: str) -> str:
    done = run_make(clone, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_make(clone: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = _environment()
    command = ["make", "--no-print-directory", *arguments, "PYTHON=./python"]
    return subprocess.run(command, cwd=clone, env={**environment, **variables}, capture_output=True, text=True)


def calls(clone: Path) -> str:
    return (clone / "calls").read_text() if (clone / "calls").exists() else ""


def _environment() -> dict[str, str]:
    """Return the environment without the variables that an enclosing make passes on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
