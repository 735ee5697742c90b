"""`python -m trainer prepare`: text in, token shards out, by many processes; stopped, it can be taken up again."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data import crew, index, inputs
from trainer.data.index import Index
from trainer.data.inputs import File
from trainer.data.progress import Progress
from trainer.data.shard import Task
from trainer.data.tokenizer import Tokenizer, tokenizer_for

JOB = "job.json"
# Text that is tokenized beforehand to learn how many bytes make a token.
_TASTE = 1 << 20


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    try:
        _prepare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer prepare",
        description="Turn text into token shards. Killed at any point, the same command goes on from there.",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="text files, .jsonl files, or folders of them")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the shards; it becomes data.path")
    parser.add_argument("--tokenizer", default="bytes", help="bytes, a tokenizer.json, or a folder that holds one")
    parser.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, help="processes (default: %(default)s)"
    )
    parser.add_argument("--shard-tokens", type=_positive, default=100_000_000, help="about so many tokens in a shard")
    parser.add_argument("--text-key", default="text", help=".jsonl: key of the text in each line")
    return parser


def _positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _prepare(options: argparse.Namespace) -> None:
    tokenizer = tokenizer_for(options.tokenizer)
    files = inputs.find(options.inputs)
    folder = Path(options.out)
    with _held(folder):
        _same_job(folder, _job(options, tokenizer, files))
        known = index.read(folder).shards if (folder / index.NAME).exists() else ()
        parts = inputs.split(files, _bytes_per_shard(files, options, tokenizer))
        tasks = [
            Task(number, part, known[number] if number < len(known) else None) for number, part in enumerate(parts)
        ]
        done = _run(tasks, options)
        shards = tuple(one.shard for one in sorted(done, key=lambda one: one.task.number))
        made = Index(tokenizer.dtype, tokenizer.vocab_size, tokenizer.name, tokenizer.eos, shards)
        index.write(folder, made)
    _say(made, sum(one.reused for one in done), folder)


def _run(tasks: list[Task], options: argparse.Namespace) -> list[crew.Done]:
    progress = Progress(sum(task.size for task in tasks), sys.stderr)
    settings = crew.Settings(options.out, options.tokenizer, options.text_key)
    try:
        return crew.run(tasks, options.workers, settings, progress.add)
    finally:
        progress.end()


def _say(made: Index, reused: int, folder: Path) -> None:
    if reused:
        print(f"reused {reused} of {len(made.shards)} shards that an earlier run had finished")
    if made.eos is None:
        print("the tokenizer has no end-of-text token: documents follow each other without a mark")
    tokens = sum(shard.tokens for shard in made.shards)
    print(f"{tokens} tokens in {len(made.shards)} shards of {made.dtype}, vocabulary {made.vocab_size}")
    print(f"train on them with: data.kind=tokens data.path={folder} (model.vocab_size at least {made.vocab_size})")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Two runs at once would write into each other's files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise _out(f"cannot write to {folder} ({error.strerror})", "choose a folder that can be written") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _out(f"another run is preparing {folder}", "wait for it, or choose another folder") from error
        yield


def _job(options: argparse.Namespace, tokenizer: Tokenizer, files: list[File]) -> dict[str, Any]:
    """Everything that decides the bytes of the shards."""
    listing = json.dumps([(file.name, file.size, file.changed_ns) for file in files])
    return {
        "version": index.VERSION,
        "inputs": hashlib.sha256(listing.encode()).hexdigest(),
        "tokenizer": tokenizer.fingerprint,
        "shard_tokens": options.shard_tokens,
        "text_key": options.text_key,
    }


def _same_job(folder: Path, job: dict[str, Any]) -> None:
    """Shards of another job are somebody's data: they are neither mixed with these nor written over."""
    path = folder / JOB
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in job.items() if before.get(name) != value]
        if changed:
            message = f"{folder} holds shards of another job: {', '.join(changed)} changed since"
            raise _out(message, f"choose another folder, or remove that one: rm -r {folder}")
    elif any(folder.glob("*.bin")) or (folder / index.NAME).exists():
        raise _out(f"{folder} holds shards that this command did not make", "choose another folder")
    else:
        index.write_durably(path, json.dumps(job, indent=2) + "\n")


def _bytes_per_shard(files: list[File], options: argparse.Namespace, tokenizer: Tokenizer) -> int:
    size = tokens = 0
    for piece in inputs.pieces((inputs.whole(file) for file in files), options.text_key):
        size += piece.size
        tokens += len(tokenizer.encode(piece.text)) + piece.ends
        if size >= _TASTE:
            break
    return max(1, options.shard_tokens * size // max(1, tokens))


def _out(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("--out", message, fix)])
