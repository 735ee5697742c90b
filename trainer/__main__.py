"""`python -m trainer CONFIG [key.sub=value ...]` trains; `prepare`, `report` and other commands do other work."""

# Start-up: each command imports only what it needs, and an invalid configuration is reported before torch is loaded.
# ruff: noqa: PLC0415
from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from trainer.command_name import MODULE_COMMAND, name_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.config.errors import ConfigProblem
    from trainer.config.schema import Config

USAGE = """usage: python -m trainer CONFIG [key.sub=value ...]       train; CONFIG is a preset or a YAML file
       python -m trainer prepare INPUT... --out FOLDER    turn text into token shards
       python -m trainer report RUN [--out FOLDER]        write a page with the curves and the time breakdown of a run
       python -m trainer profile RUN [--steps N]          trace the next steps of a running job with torch's profiler
       python -m trainer evaluate RUN [key.sub=value ...] evaluate the newest checkpoint on held-out samples
       python -m trainer export FROM FOLDER               write the newest checkpoint as Hugging Face safetensors
       python -m trainer measure-collectives              time all-reduces on these ranks for communication.pattern=auto
       python -m trainer settings [--from FOLDER]         list every setting, or write those of a Hugging Face folder

Run a command with --help for its options."""
HELP_OPTIONS = ("-h", "--help")
RANK_0_TIMEOUT_S = 10.0
_STDERR = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
# Commands that need no torch, with the module whose `main` runs them.
_MODULES = {"prepare": "trainer.data.prepare", "report": "trainer.report.__main__", "profile": "trainer.trace_command"}
TORCHLESS_COMMANDS = (*_MODULES, "settings", "help", *HELP_OPTIONS)
TORCH_COMMANDS = ("evaluate", "export", "measure-collectives")
"""The commands other than training that need torch."""


def main(argv: list[str]) -> int:
    """Run the command and return the exit status."""
    command, *arguments = argv or [""]
    if command in _MODULES:
        status: int = importlib.import_module(_MODULES[command]).main(arguments)
        return status
    if command in TORCH_COMMANDS:
        run = {"evaluate": _evaluate, "export": _export, "measure-collectives": _measure}[command]
        return _run_with_torch(lambda: run(arguments), f"/shared/muster/trainer/run {' '.join(argv)}")
    if command == "settings":
        return _list_settings(arguments)
    if command in ("", "help", *HELP_OPTIONS) or any(argument in HELP_OPTIONS for argument in arguments):
        return _print_help(sys.stdout if argv else sys.stderr)
    on_cluster = f'make submit JOB=slurm/jobs/train.sbatch ARGS="{" ".join(argv)}"'
    return _run_with_torch(lambda: _train(command, arguments), on_cluster)


def _run_with_torch(run: Callable[[], int], on_cluster: str) -> int:
    """Run a command that needs torch; without torch, print the command that works on the cluster instead."""
    try:
        return run()
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        fix = f"on the cluster: `{on_cluster}`; here: use an environment with `pip install '.[trainer]'`"
        print(f"trainer: torch is not installed in this environment; {fix}", file=sys.stderr, flush=True)
        return 2


def _print_help(stream: TextIO) -> int:
    from trainer.config.load import list_presets

    overrides = (
        "Values are YAML: optimizer.lr=1e-3 model.hidden=[64,64] data.path=shards. A YAML file can extend a preset "
    )
    overrides += "or another file with `base: llama-1b`."
    usage = USAGE.replace(MODULE_COMMAND, name_command())
    print(f"{usage}\n\npresets: {', '.join(list_presets())}\n{overrides}", file=stream)
    return 0 if stream is sys.stdout else 2


def _list_settings(arguments: list[str]) -> int:
    import argparse

    from trainer.config import describe

    parser = argparse.ArgumentParser(
        name_command("settings"), description="List every setting with its default, allowed values and meaning."
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--markdown", action="store_true", help="print docs/trainer-settings.md")
    formats.add_argument(
        "--from",
        dest="folder",
        metavar="FOLDER",
        type=Path,
        help="print a YAML file that trains this Hugging Face model",
    )
    options = parser.parse_args(arguments)
    if options.folder:
        return _print_settings_of_folder(options.folder)
    print(describe.render_markdown() if options.markdown else describe.render_text())
    return 0


def _print_settings_of_folder(folder: Path) -> int:
    from trainer.config.errors import ConfigError
    from trainer.models.hf_settings import render_yaml

    try:
        print(render_yaml(folder), end="")
    except ConfigError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    return 0


def _evaluate(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        name_command("evaluate"),
        description="Evaluate the newest valid checkpoint of a run, or its best one, on its evaluation set, or on "
        "another one (evaluation.share=0 evaluation.path=FOLDER). Under torchrun, all ranks evaluate together.",
    )
    parser.add_argument(
        "run", metavar="RUN", type=Path, help="a run's folder, its checkpoints folder or one checkpoint"
    )
    parser.add_argument("overrides", metavar="key.sub=value", nargs="*", help="settings to change, as for training")
    parser.add_argument("--best", action="store_true", help="the best checkpoint by checkpoint.best instead")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    # Before Python 3.13, parse_args refuses settings after an option.
    options = parser.parse_intermixed_args(arguments)
    from trainer.evaluation.command import print_evaluation

    return print_evaluation(options.run, options.overrides, is_best=options.best, as_json=options.json)


def _measure(arguments: list[str]) -> int:
    from trainer.measure_command import main as measure

    return measure(arguments)


def _export(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        name_command("export"),
        description="Write the newest valid checkpoint as a Hugging Face folder, with the tokenizer of the run.",
    )
    parser.add_argument("--best", action="store_true", help="the best checkpoint by checkpoint.best instead")
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="a run's folder, its checkpoints folder, or one checkpoint"
    )
    parser.add_argument("out", metavar="FOLDER", type=Path, help="where to write config.json and model.safetensors")
    options = parser.parse_args(arguments)
    from trainer.config.errors import ConfigError
    from trainer.weights import export

    try:
        export(options.source, options.out, is_best=options.best)
    except ConfigError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    return 0


def _train(name: str, overrides: list[str]) -> int:
    from trainer.checkpoint.folder import CHECKPOINTS_FOLDER, list_published
    from trainer.config.errors import ConfigError, FolderInUseError
    from trainer.config.load import load
    from trainer.life import outcome

    if outcome.read_decided() is not None:
        return 0
    faulthandler.enable(_STDERR)  # a crash in C prints the Python stacks
    try:
        config = load(name, overrides)
        folder = Path(config.run.folder.format(name=config.name))
        problems = _check_ranks(config)
        if problems and (published := list_published(folder / CHECKPOINTS_FOLDER)):
            # The run started before, so its nodes have changed. A requeue may give it a number of ranks that fits.
            reason = f"does not fit the remaining ranks: {problems[0]}"
            return outcome.end(outcome.Code.REQUEUE, reason, published[0].step, folder, _rank())
        if problems:
            raise ConfigError(problems)
        return _run(config)
    except ConfigError as error:
        if _rank() == 0:
            print(f"trainer: {error.summary}\n{error}", file=sys.stderr, flush=True)
        else:
            _wait_for_rank_0()
        if isinstance(error, FolderInUseError):
            return int(outcome.Code.BAD_INPUT)
        return _reject("; ".join(str(error).splitlines()))


def _wait_for_rank_0() -> None:
    """Let rank 0 print the error: torchrun ends all ranks when the first one exits, and rank 0 may be slower.

    When rank 0 exits with an error, torchrun ends this rank too. Under a job script, rank 0 exits with 0 after it has
    written the outcome file.
    """
    from trainer.life import outcome

    deadline = time.monotonic() + RANK_0_TIMEOUT_S
    while outcome.read_decided() is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _reject(reason: str) -> int:
    """Return the exit status of a run that never began, and write the outcome file if a job script expects one."""
    from trainer.life import outcome

    if outcome.FILE_VARIABLE not in os.environ:
        return int(outcome.Code.BAD_INPUT)
    try:
        return outcome.end(outcome.Code.BAD_INPUT, reason, 0, Path(), _rank())
    except OSError:
        return int(outcome.Code.BAD_INPUT)


def _check_ranks(config: Config) -> list[ConfigProblem]:
    """Return the problems that keep the configuration from running on the ranks that torchrun started."""
    from trainer.config.check import check_world

    world_size, local_size = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return check_world(config, world_size, local_size)


def _run(config: Config) -> int:
    # Importing torch creates half a million permanent objects. Garbage collection would take a tenth of the import's
    # time, and later each full collection would stop the run for 0.2 s to look at all of them.
    gc.disable()
    from trainer.loop.session import Session

    gc.freeze()
    gc.enable()
    return Session(config, BEGAN).run()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _read_process_start() -> float:
    """Return when the kernel started this process, as wall time, so that the interpreter's own start is included."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - (uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


BEGAN = _read_process_start() if Path("/proc/self/stat").exists() else time.time()


def _main_to_status(argv: list[str]) -> int:
    """Run the command and return the exit status, also after an unexpected error, whose traceback is printed."""
    try:
        try:
            status = main(argv)
        except SystemExit as end:  # from argparse, always with a number
            status = int(end.code or 0)
        sys.stdout.flush()
    except KeyboardInterrupt:
        traceback.print_exc()
        return _INTERRUPTED
    except BaseException as error:
        # The reader of the list has closed the pipe, as `head` does. In a run it is an error, with a traceback.
        if not (isinstance(error, BrokenPipeError) and argv[0] == "settings"):
            traceback.print_exc()
        return 1
    return status


if __name__ == "__main__":
    exit_status = _main_to_status(sys.argv[1:])
    sys.stderr.flush()
    # Everything is on disk. An orderly shutdown of torch takes seconds and can hang in a library's exit handler.
    os._exit(exit_status)
