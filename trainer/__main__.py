"""`python -m trainer CONFIG [key.sub=value ...]` trains; `prepare`, `report`, `export` and `settings` are beside it."""

# ruff: noqa: PLC0415  # each command imports what it needs, and a bad config is told before torch is loaded
from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.config.problem import Problem
    from trainer.config.schema import Config

USAGE = """usage: python -m trainer CONFIG [key.sub=value ...]      train; CONFIG is a YAML file or a preset
       python -m trainer prepare INPUT... --out FOLDER    text to token shards
       python -m trainer report RUN [--out FOLDER]        curves and time split of a run, as a page
       python -m trainer export RUN FOLDER                newest checkpoint to Hugging Face safetensors
       python -m trainer settings [--markdown]            every key, its default, its meaning"""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        from trainer.config.load import presets

        print(f"{USAGE}\n\npresets: {', '.join(presets())}", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    command, *rest = argv
    if command == "prepare":
        from trainer.data.prepare import main as prepare

        return prepare(rest)
    if command == "report":
        from trainer.report.__main__ import main as report

        return report(rest)
    if command == "settings":
        from trainer.config import describe

        print(describe.markdown() if rest == ["--markdown"] else describe.text())
        return 0
    if command == "export":
        return _export(rest)
    return _train(command, rest)


def _export(words: list[str]) -> int:
    from trainer.config.problem import ConfigError

    if len(words) != 2:  # noqa: PLR2004
        print(USAGE, file=sys.stderr)
        return 2
    from trainer.weights import export

    try:
        export(Path(words[0]), Path(words[1]))
    except ConfigError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    return 0


def _train(name: str, overrides: list[str]) -> int:
    from trainer.config.load import load
    from trainer.config.problem import ConfigError
    from trainer.life import outcome

    folder = None
    if outcome.decided() is not None:
        return 0
    try:
        config = load(name, overrides)
        where = Path(config.run.folder.format(name=config.name))
        problems = _problems(config)
        if problems and any((where / "checkpoints").glob("step-*")):
            # It ran before, on another number of ranks: a node was lost, and the queue can find a better number.
            reason = f"does not fit what is left of the ranks: {problems[0]}"
            return outcome.end(outcome.Code.REQUEUE, reason, 0, where, _rank())
        if problems:
            raise ConfigError(problems)
        folder = where
        return _run(config)
    except ConfigError as error:
        if _rank() == 0:
            print(f"trainer: {len(error.problems)} to mend before this can run\n{error}", file=sys.stderr, flush=True)
        else:
            # torchrun ends all ranks with the first that leaves: not before the one that speaks has spoken.
            time.sleep(1.0)
        return _bad_input("; ".join(str(error).splitlines()), folder)


def _bad_input(reason: str, folder: Path | None) -> int:
    """The folder may be unknown yet, the very thing that is wrong, or a good run's: then only the exit status tells."""
    from trainer.life import outcome

    new = folder is not None and folder.exists() and not any((folder / "checkpoints").glob("step-*"))
    if not new and outcome.FILE_VARIABLE not in os.environ:
        return int(outcome.Code.BAD_INPUT)
    try:
        return outcome.end(outcome.Code.BAD_INPUT, reason, 0, folder or Path(), _rank())
    except OSError:
        return int(outcome.Code.BAD_INPUT)


def _problems(config: Config) -> list[Problem]:
    """Why this does not fit the ranks there are."""
    from trainer.config.check import check_world

    world_size, local_size = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return check_world(config, world_size, local_size)


def _run(config: Config) -> int:
    from trainer.loop import Run
    from trainer.world import WorldError

    try:
        return Run(config, BEGAN).go()
    except WorldError as error:
        print(f"trainer: FAILED on rank {_rank()}: {error}", file=sys.stderr, flush=True)
        return 1


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _process_start() -> float:
    """When the kernel started this process, as wall time: the interpreter's own start counts too."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return time.time() - (uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


BEGAN = _process_start() if Path("/proc/self/stat").exists() else time.time()

if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch down in order takes seconds and can hang in a library's exit handler; everything is on the disk.
    os._exit(status)
