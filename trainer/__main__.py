"""`python -m trainer CONFIG [key.sub=value ...]` trains; `prepare`, `report`, `export` and `settings` are beside it."""

# ruff: noqa: PLC0415  # each command imports what it needs, and a bad config is told before torch is loaded
from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from trainer.config.errors import ConfigProblem
    from trainer.config.schema import Config

USAGE = """usage: python -m trainer CONFIG [key.sub=value ...]      train; CONFIG is a YAML file or a preset
       python -m trainer prepare INPUT... --out FOLDER    text to token shards
       python -m trainer report RUN [--out FOLDER]        curves and time split of a run, as a page
       python -m trainer export FROM FOLDER               newest checkpoint to Hugging Face safetensors
       python -m trainer settings [--markdown]            every key, its default, its meaning

each of them with --help says more"""
HELP = ("-h", "--help")
FIRST_SPEAKS_S = 10.0


def main(argv: list[str]) -> int:
    command, *rest = argv or [""]
    if command in ("prepare", "report", "export", "settings"):
        return _beside(command, rest)
    if command in ("", "help", *HELP) or any(word in HELP for word in rest):
        return _help(sys.stdout if argv else sys.stderr)
    return _train(command, rest)


def _help(stream: TextIO) -> int:
    from trainer.config.load import list_presets

    overrides = "settings are YAML: optimizer.lr=1e-3 model.hidden=[64,64] data.path=shards; a file may start from a "
    overrides += "preset or another file with `base: llama-1b`"
    print(f"{USAGE}\n\npresets: {', '.join(list_presets())}\n{overrides}", file=stream)
    return 0 if stream is sys.stdout else 2


def _beside(command: str, words: list[str]) -> int:
    """The commands that are not training; argparse ends the process for --help and for words it does not know."""
    if command == "prepare":
        from trainer.data.prepare import main as prepare

        return prepare(words)
    if command == "report":
        from trainer.report.__main__ import main as report

        return report(words)
    return _export(words) if command == "export" else _settings(words)


def _settings(words: list[str]) -> int:
    import argparse

    from trainer.config import describe

    parser = argparse.ArgumentParser(
        "python -m trainer settings", description="Every setting: its default, what is allowed, what it means."
    )
    parser.add_argument("--markdown", action="store_true", help="as the page in the documentation")
    print(describe.render_markdown() if parser.parse_args(words).markdown else describe.render_text())
    return 0


def _export(words: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        "python -m trainer export", description="The newest good checkpoint as a folder that Hugging Face opens."
    )
    parser.add_argument("source", metavar="FROM", type=Path, help="a run's folder, its checkpoints, or one of them")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="where config.json and model.safetensors go")
    options = parser.parse_args(words)
    from trainer.config.errors import ConfigError
    from trainer.weights import export

    try:
        export(options.source, options.out)
    except ConfigError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    return 0


def _train(name: str, overrides: list[str]) -> int:
    from trainer.checkpoint.folder import CHECKPOINTS_FOLDER, list_published
    from trainer.config.errors import ConfigError
    from trainer.config.load import load
    from trainer.life import outcome

    if outcome.read_decided() is not None:
        return 0
    try:
        config = load(name, overrides)
        folder = Path(config.run.folder.format(name=config.name))
        problems = _problems(config)
        if problems and (saved := list_published(folder / CHECKPOINTS_FOLDER)):
            # It ran before, on another number of ranks: a node was lost, and the queue can find a better number.
            reason = f"does not fit what is left of the ranks: {problems[0]}"
            return outcome.end(outcome.Code.REQUEUE, reason, saved[0].step, folder, _rank())
        if problems:
            raise ConfigError(problems)
        return _run(config)
    except ConfigError as error:
        if _rank() == 0:
            print(f"trainer: {error.summary}\n{error}", file=sys.stderr, flush=True)
        else:
            _let_the_first_speak()
        return _refused("; ".join(str(error).splitlines()))


def _let_the_first_speak() -> None:
    """torchrun ends all ranks with the first that leaves, and the one that speaks may still be on its way.

    When it leaves, the others are ended; under a job script it leaves well, and its word is in the file.
    """
    from trainer.life import outcome

    deadline = time.monotonic() + FIRST_SPEAKS_S
    while outcome.read_decided() is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _refused(reason: str) -> int:
    """A run that never began has no record. Whoever started it gets the exit status, a job script its file."""
    from trainer.life import outcome

    if outcome.FILE_VARIABLE not in os.environ:
        return int(outcome.Code.BAD_INPUT)
    try:
        return outcome.end(outcome.Code.BAD_INPUT, reason, 0, Path(), _rank())
    except OSError:
        return int(outcome.Code.BAD_INPUT)


def _problems(config: Config) -> list[ConfigProblem]:
    """Why this does not fit the ranks there are."""
    from trainer.config.check import check_world

    world_size, local_size = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return check_world(config, world_size, local_size)


def _run(config: Config) -> int:
    from trainer.loop.session import Session
    from trainer.world import WorldError

    try:
        return Session(config, BEGAN).run()
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
