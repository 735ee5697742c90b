"""`python -m trainer prepare`: turn text into token shards with many processes; can be interrupted and continued."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from trainer.command_name import name_command
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data import index, inputs
from trainer.data.index import Index
from trainer.data.inputs import TextFile
from trainer.data.shard import ReadOptions, ShardTask
from trainer.data.text_files import BadRow, read_pieces, refuse_row
from trainer.data.tokenizer import Tokenizer, load_tokenizer, store_tokenizer
from trainer.data.workers import FinishedTask, WorkerSettings, run_tasks

JOB_FILE = "job.json"
_SIZE_UNITS = ((1e6, "MB"), (1e3, "kB"), (1, "B"))
# Amount of text that is tokenized first, to estimate the bytes per token.
_ESTIMATE_BYTES = 1 << 20
# Amount of input without any text after which the command gives up: --text-key is probably wrong.
_MAX_BYTES_WITHOUT_TEXT = 1 << 26


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    options = _make_parser().parse_args(argv)
    try:
        _prepare(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name_command("prepare"),
        description="Turn text into token shards. If it is interrupted, the same command continues where it stopped.",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="text, .jsonl or .parquet files, or folders of them")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the shards; use it as data.path")
    parser.add_argument(
        "--tokenizer", default="bytes", help="bytes (default), a tokenizer.json, or a folder that contains one"
    )
    parser.add_argument(
        "--workers",
        type=_parse_positive,
        default=os.cpu_count() or 1,
        help="number of processes (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-tokens",
        type=_parse_positive,
        default=100_000_000,
        help="approximate number of tokens per shard (default: %(default)s)",
    )
    parser.add_argument(
        "--text-key",
        default="text",
        help="key of the text in .jsonl and column in .parquet files; dots select nested keys (default: %(default)s)",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out and list rows without text, instead of stopping at the first"
    )
    return parser


def _parse_positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _prepare(options: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(options.tokenizer)
    files = inputs.find_files(options.inputs)
    folder = Path(options.out)
    with _lock(folder):
        _check_job(folder, _describe_job(options, tokenizer, files))
        indexed = index.read(folder).shards if (folder / index.NAME).exists() else ()
        parts = inputs.split_files(files, _estimate_bytes_per_shard(files, options, tokenizer))
        tasks = [
            ShardTask(number, part, indexed[number] if number < len(indexed) else None)
            for number, part in enumerate(parts)
        ]
        finished = sorted(_run(tasks, options), key=lambda result: result.task.number)
        shards = tuple(result.shard for result in finished)
        contents = Index(tokenizer.dtype, tokenizer.vocab_size, tokenizer.name, tokenizer.eos, shards)
        store_tokenizer(tokenizer, folder)
        index.write(folder, contents)
    _print_summary(contents, sum(result.reused for result in finished), folder)
    _print_skipped([folder / task.skipped_file for task in tasks])


def _run(tasks: list[ShardTask], options: argparse.Namespace) -> list[FinishedTask]:
    progress = _Progress(sum(task.size for task in tasks), sys.stderr)
    settings = WorkerSettings(options.out, options.tokenizer, ReadOptions(options.text_key, options.skip_bad))
    try:
        return run_tasks(tasks, options.workers, settings, progress.add)
    finally:
        progress.end()


def _print_summary(contents: Index, reused: int, folder: Path) -> None:
    if reused:
        print(f"reused {reused} of {len(contents.shards)} shards that an earlier run had finished")
    if contents.eos is None:
        print("the tokenizer has no end-of-text token: nothing separates the documents")
    tokens = sum(shard.tokens for shard in contents.shards)
    count = len(contents.shards)
    shards = "1 shard" if count == 1 else f"{count} shards"
    print(f"{tokens} tokens in {shards} of {contents.dtype}, vocabulary {contents.vocab_size}")
    print(f"train with: data.kind=tokens data.path={folder} (model.vocab_size at least {contents.vocab_size})")


def _print_skipped(lists: list[Path]) -> None:
    """Print how many rows were skipped, with the first; shards of earlier runs count too."""
    rows = [line for path in lists if path.exists() for line in path.read_text(encoding="utf-8").splitlines()]
    if rows:
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        where = next(path for path in lists if path.exists()).parent / "*.skipped.jsonl"
        print(f"skipped {count} without text, listed in {where}; the first: {BadRow(**json.loads(rows[0]))}")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock the folder: two runs at once would overwrite each other's files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise _error(f"cannot write to {folder} ({error.strerror})", "choose a writable folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _error(f"another run is preparing {folder}", "wait for it, or choose another folder") from error
        yield


def _describe_job(options: argparse.Namespace, tokenizer: Tokenizer, files: list[TextFile]) -> dict[str, Any]:
    """Return everything that determines the bytes of the shards."""
    listing = json.dumps([(file.name, file.size, file.changed_ns) for file in files])
    return {
        "version": index.VERSION,
        "inputs": hashlib.sha256(listing.encode()).hexdigest(),
        "tokenizer": tokenizer.fingerprint,
        "eos": tokenizer.eos,
        "shard_tokens": options.shard_tokens,
        "text_key": options.text_key,
        # Absent unless set, so that folders of earlier versions can be continued. The number changes with the estimate
        # of the bytes per shard, which decides where the text is cut.
        **({"skip_bad": 2} if options.skip_bad else {}),
    }


def _check_job(folder: Path, job: dict[str, Any]) -> None:
    """Raise a ConfigError if the folder contains shards of another job, so that they are not mixed or overwritten."""
    path = folder / JOB_FILE
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        # Earlier versions did not store the end-of-text token; the index has it once all shards are complete.
        eos = index.read(folder).eos if (folder / index.NAME).exists() else before.get("eos", job["eos"])
        before["eos"] = eos
        changed = [name for name in {**before, **job} if before.get(name) != job.get(name)]
        if changed:
            message = f"{folder} contains shards of another job ({', '.join(changed)} changed)"
            raise _error(message, f"choose another folder, or remove this one: rm -r {folder}")
    elif any(folder.glob("*.bin")) or (folder / index.NAME).exists():
        raise _error(f"{folder} contains shards that this command did not make", "choose another folder")
    else:
        index.write_durably(path, json.dumps(job, indent=2) + "\n")


def _estimate_bytes_per_shard(files: list[TextFile], options: argparse.Namespace, tokenizer: Tokenizer) -> int:
    size = tokens = 0
    on_bad = (lambda _: None) if options.skip_bad else refuse_row
    for piece in read_pieces((inputs.whole_range(file) for file in files), options.text_key, on_bad):
        size += piece.size
        tokens += len(tokenizer.encode(piece.text)) + piece.ends
        if size >= (_ESTIMATE_BYTES if tokens else _MAX_BYTES_WITHOUT_TEXT):
            break
    if not tokens:
        message = f"no text in the first {size} bytes of {', '.join(options.inputs)}"
        fix = f"check the inputs, and --text-key={options.text_key} for .jsonl and .parquet files"
        raise ConfigError([ConfigProblem("INPUT", message, fix)])
    return max(1, options.shard_tokens * size // tokens)


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("--out", message, fix)])


class _Progress:
    """Processed bytes out of a total, with rate and remaining time: a bar on a terminal, occasional lines in a log."""

    WIDTH = 24
    TERMINAL_INTERVAL_S = 0.1
    LOG_INTERVAL_S = 5.0

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._done = 0
        self._started = self._shown = time.monotonic()

    def add(self, size: int) -> None:
        self._done += size
        interval = self.TERMINAL_INTERVAL_S if self._is_terminal else self.LOG_INTERVAL_S
        if time.monotonic() - self._shown > interval:
            self._show()

    def end(self) -> None:
        self._show()
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _show(self) -> None:
        self._shown = time.monotonic()
        share = min(1.0, self._done / max(1, self._total))
        rate = self._done / max(1e-9, self._shown - self._started)
        left = (self._total - self._done) / rate if rate else float("inf")
        bar = ("#" * int(share * self.WIDTH)).ljust(self.WIDTH, ".")
        size, unit = next((pair for pair in _SIZE_UNITS if self._total >= pair[0]), _SIZE_UNITS[-1])
        amount = f"{self._done / size:.1f} of {self._total / size:.1f} {unit}"
        text = f"[{bar}] {share:4.0%}  {amount}  {rate / size:.1f} {unit}/s"
        text += f"  {left:.0f} s left" if 0 < left < float("inf") else ""
        self._stream.write(f"\r{text}\x1b[K" if self._is_terminal else f"{text}\n")
        self._stream.flush()
