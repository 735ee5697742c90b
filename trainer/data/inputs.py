"""The text that is to be prepared: which files, and how they are cut into parts that become one shard each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem

_TEXT = {".txt", ".md", ".rst", ".py", ".jsonl", ".ndjson", ".json", ".csv", ".html", ".tex", ".c", ".h", ".cpp", ".rs"}
_LINES = {".jsonl", ".ndjson"}
# What is given to a tokenizer at once; longer documents are cut after a line.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class File:
    """`name` is how it is known whatever folder it lies in; with size and time it says that a file is unchanged."""

    path: str
    name: str
    size: int
    changed_ns: int


@dataclass(frozen=True)
class Range:
    """Bytes [start, end) of a file, cut after a line; `last` is set where they reach the file's end."""

    path: str
    start: int
    end: int
    last: bool


@dataclass(frozen=True)
class Piece:
    """Text for the tokenizer: `size` bytes of input were read for it; `ends` says that a document ends here."""

    text: bytes
    size: int
    ends: bool


def find(inputs: Sequence[str]) -> list[File]:
    """All text files, in an order of names; empty ones are left out, and of folders binary and hidden ones."""
    problems = [
        ConfigProblem("INPUT", f"there is no file or folder {one}", "check the name")
        for one in inputs
        if not Path(one).exists()
    ]
    if problems:
        raise ConfigError(problems)
    files = [file for one in inputs for file in _below(Path(one)) if file.size]
    if not files:
        raise ConfigError(
            [ConfigProblem("INPUT", f"no text in {', '.join(inputs)}", "give text files, .jsonl, or folders")]
        )
    return files


def split(files: Iterable[File], target: int) -> list[tuple[Range, ...]]:
    """Parts of about `target` bytes each. Workers appear nowhere, so any number of them makes the same shards."""
    parts: list[tuple[Range, ...]] = []
    part: list[Range] = []
    room = target
    for file in files:
        start = 0
        while start < file.size:
            end = file.size if file.size - start <= room else _after_line(file, start + room)
            part.append(Range(file.path, start, end, last=end == file.size))
            room -= end - start
            start = end
            if room <= 0:
                parts.append(tuple(part))
                part, room = [], target
    return [*parts, tuple(part)] if part else parts


def whole(file: File) -> Range:
    return Range(file.path, 0, file.size, last=True)


def pieces(ranges: Iterable[Range], text_key: str) -> Iterator[Piece]:
    for one in ranges:
        if Path(one.path).suffix in _LINES:
            yield from _json_lines(one, text_key)
        else:
            yield from _plain(one)


def _below(path: Path) -> Iterator[File]:
    if path.is_file():
        if not _is_text(path):
            raise ConfigError([ConfigProblem("INPUT", f"{path} is not text (it has zero bytes in it)", "leave it out")])
        yield _file(path, path.name)
        return
    for one in sorted(path.rglob("*")):
        name = one.relative_to(path)
        hidden = any(part.startswith(".") for part in name.parts)
        if not hidden and one.is_file() and _is_text(one):
            yield _file(one, name.as_posix())


def _file(path: Path, name: str) -> File:
    status = path.stat()
    return File(str(path.resolve()), name, status.st_size, status.st_mtime_ns)


def _is_text(path: Path) -> bool:
    # Opening every file of a large folder on a shared filesystem takes minutes; a known ending needs none of it.
    if path.suffix in _TEXT:
        return True
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def _after_line(file: File, offset: int) -> int:
    """Just behind the line that holds the byte before `offset`."""
    with open(file.path, "rb") as opened:
        opened.seek(offset - 1)
        opened.readline()
        return min(opened.tell(), file.size)


def _plain(one: Range) -> Iterator[Piece]:
    with open(one.path, "rb") as file:
        file.seek(one.start)
        left = one.end - one.start
        while left:
            block = file.read(min(left, _BLOCK))
            if len(block) < left:
                block += file.readline(left - len(block))
            if not block:
                raise _changed(one)
            left -= len(block)
            yield Piece(block, len(block), ends=one.last and not left)


def _json_lines(one: Range, text_key: str) -> Iterator[Piece]:
    with open(one.path, "rb") as file:
        file.seek(one.start)
        while (at := file.tell()) < one.end:
            line = file.readline()
            if not line:
                raise _changed(one)
            if not line.strip():
                continue
            try:
                text = json.loads(line)[text_key].encode(errors="replace")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"{one.path}: the line at byte {at} is no JSON object with a text under {text_key!r}"
                fix = "mend or remove the line, or name the key with --text-key"
                raise ConfigError([ConfigProblem("INPUT", message, fix)]) from error
            yield Piece(text, len(line), ends=True)


def _changed(one: Range) -> ConfigError:
    return ConfigError(
        [ConfigProblem("INPUT", f"{one.path} became shorter while it was read", "run the command again")]
    )
