"""The text to prepare: find the files, and cut them into parts that become one shard each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.text_files import COMPRESSED_SUFFIXES, PARQUET_SUFFIX, FileRange, find_cut, measure, read_start

_TEXT_SUFFIXES = frozenset(
    {".txt", ".md", ".rst", ".py", ".jsonl", ".ndjson", ".json", ".csv", ".html", ".tex", ".c", ".h", ".cpp", ".rs"}
)
# A file with a zero byte in this part of it is not text.
_START_BYTES = 8192


@dataclass(frozen=True)
class TextFile:
    """A file of text; a different name, size or modification time means that it has changed."""

    path: str
    name: str
    """Path relative to the input folder, so that moving the folder changes nothing."""
    size: int
    """Bytes; those of the row groups in a Parquet file."""
    changed_ns: int


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
        raise _error(f"no text in {', '.join(inputs)}", "give text, .jsonl or .parquet files, or folders of them")
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
            end = file.size if file.size - start <= room else find_cut(Path(file.path), start + room, file.size)
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
    return TextFile(str(path.resolve()), name, measure(path), status.st_mtime_ns)


def _is_text(path: Path) -> bool:
    # Opening every file of a large folder on a shared filesystem takes minutes; a common suffix avoids that.
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix
    if suffix in _TEXT_SUFFIXES or path.suffix == PARQUET_SUFFIX:
        return True
    return b"\0" not in read_start(path, _START_BYTES)


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("INPUT", message, fix)])
