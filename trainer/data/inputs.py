"""The text to prepare: find the files, and cut them into parts that become one shard each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem

_TEXT_SUFFIXES = frozenset(
    {".txt", ".md", ".rst", ".py", ".jsonl", ".ndjson", ".json", ".csv", ".html", ".tex", ".c", ".h", ".cpp", ".rs"}
)
_JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})
# Text per call of the tokenizer; longer documents are cut at the end of a line.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class TextFile:
    """A file of text; a different name, size or modification time means that it has changed."""

    path: str
    name: str
    """Path relative to the input folder, so that moving the folder changes nothing."""
    size: int
    changed_ns: int


@dataclass(frozen=True)
class FileRange:
    """Bytes [start, end) of a file, cut at the end of a line."""

    path: str
    start: int
    end: int
    last: bool
    """Whether the range reaches the end of the file."""


@dataclass(frozen=True)
class TextPiece:
    """Text for one call of the tokenizer."""

    text: bytes
    size: int
    """Bytes of input that it was read from."""
    ends: bool
    """Whether a document ends after it."""


def find_files(inputs: Sequence[str]) -> list[TextFile]:
    """Return all text files of the inputs, sorted by name within each folder.

    Empty files are left out; in folders, binary and hidden files are left out too.
    """
    problems = [
        ConfigProblem("INPUT", f"there is no file or folder {path}", "check the name")
        for path in inputs
        if not Path(path).exists()
    ]
    if problems:
        raise ConfigError(problems)
    files = [file for path in inputs for file in _list_files(Path(path)) if file.size]
    if not files:
        raise _error(f"no text in {', '.join(inputs)}", "give text files, .jsonl files, or folders of them")
    return files


def split_files(files: Iterable[TextFile], target: int) -> list[tuple[FileRange, ...]]:
    """Cut the files into parts of about `target` bytes.

    The cuts do not depend on the number of workers, so the shards do not either.
    """
    parts: list[tuple[FileRange, ...]] = []
    part: list[FileRange] = []
    room = target
    for file in files:
        start = 0
        while start < file.size:
            end = file.size if file.size - start <= room else _find_line_end(file, start + room)
            part.append(FileRange(file.path, start, end, last=end == file.size))
            room -= end - start
            start = end
            if room <= 0:
                parts.append(tuple(part))
                part, room = [], target
    return [*parts, tuple(part)] if part else parts


def whole_range(file: TextFile) -> FileRange:
    """Return the range that covers a whole file."""
    return FileRange(file.path, 0, file.size, last=True)


def read_pieces(ranges: Iterable[FileRange], text_key: str) -> Iterator[TextPiece]:
    """Yield the text of some ranges; `text_key` is the key of the text in each line of a .jsonl file."""
    for file_range in ranges:
        if Path(file_range.path).suffix in _JSON_LINES_SUFFIXES:
            yield from _read_json_lines(file_range, text_key)
        else:
            yield from _read_plain(file_range)


def _list_files(path: Path) -> Iterator[TextFile]:
    if path.is_file():
        if not _is_text(path):
            raise _error(f"{path} is not text (it contains zero bytes)", "leave it out")
        yield _describe_file(path, path.name)
        return
    for child in sorted(path.rglob("*")):
        name = child.relative_to(path)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if not is_hidden and child.is_file() and _is_text(child):
            yield _describe_file(child, name.as_posix())


def _describe_file(path: Path, name: str) -> TextFile:
    status = path.stat()
    return TextFile(str(path.resolve()), name, status.st_size, status.st_mtime_ns)


def _is_text(path: Path) -> bool:
    # Opening every file of a large folder on a shared filesystem takes minutes; a common suffix avoids that.
    if path.suffix in _TEXT_SUFFIXES:
        return True
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def _find_line_end(file: TextFile, offset: int) -> int:
    """Return the offset after the line that contains the byte before `offset`."""
    with open(file.path, "rb") as opened:
        opened.seek(offset - 1)
        opened.readline()
        return min(opened.tell(), file.size)


def _read_plain(file_range: FileRange) -> Iterator[TextPiece]:
    with open(file_range.path, "rb") as file:
        file.seek(file_range.start)
        left = file_range.end - file_range.start
        while left:
            block = file.read(min(left, _BLOCK_BYTES))
            if len(block) < left:
                block += file.readline(left - len(block))
            if not block:
                raise _truncated_error(file_range)
            left -= len(block)
            yield TextPiece(block, len(block), ends=file_range.last and not left)


def _read_json_lines(file_range: FileRange, text_key: str) -> Iterator[TextPiece]:
    with open(file_range.path, "rb") as file:
        file.seek(file_range.start)
        while (offset := file.tell()) < file_range.end:
            line = file.readline()
            if not line:
                raise _truncated_error(file_range)
            if not line.strip():
                continue
            try:
                text = json.loads(line)[text_key].encode(errors="replace")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"{file_range.path}: the line at byte {offset} is not a JSON object with text in {text_key!r}"
                raise _error(message, "fix or remove the line, or name the key with --text-key") from error
            yield TextPiece(text, len(line), ends=True)


def _truncated_error(file_range: FileRange) -> ConfigError:
    return _error(f"{file_range.path} became shorter while it was read", "run the command again")


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("INPUT", message, fix)])
