"""The formats of text: plain files, JSON lines and Parquet; plain files and JSON lines may be compressed."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem

COMPRESSED_SUFFIXES = frozenset({".gz", ".zst"})
PARQUET_SUFFIX = ".parquet"
_JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})
# Text per call of the tokenizer; longer documents are cut at the end of a line.
_BLOCK_BYTES = 1 << 20
_ROWS = 1024


@dataclass(frozen=True)
class FileRange:
    """Bytes [start, end) of a file, cut at the end of a line; those of a Parquet file are the sizes of row groups."""

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


@dataclass(frozen=True)
class BadRow:
    """A line or row without text."""

    path: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.place} {self.reason}"


def refuse_row(row: BadRow) -> None:
    """Raise a ConfigError that names the row."""
    fix = "fix or remove it, name the key of the text with --text-key, or skip such rows with --skip-bad"
    raise _error(str(row), fix)


def read_pieces(
    ranges: Iterable[FileRange], text_key: str, on_bad: Callable[[BadRow], None] = refuse_row
) -> Iterator[TextPiece]:
    """Yield the text of some ranges.

    `text_key` names the text in JSON lines and Parquet; dots lead into nested objects. `on_bad` is called with each row
    that has no text there; its piece is empty.
    """
    for file_range in ranges:
        name = Path(file_range.path)
        is_compressed = name.suffix in COMPRESSED_SUFFIXES
        inner = name.with_suffix("").suffix if is_compressed else name.suffix
        if inner == PARQUET_SUFFIX:
            yield from _read_parquet(file_range, text_key, on_bad)
        elif inner in _JSON_LINES_SUFFIXES:
            yield from _read_json_lines(file_range, text_key, on_bad)
        elif is_compressed:
            yield from _read_compressed(file_range)
        else:
            yield from _read_plain(file_range)


def measure(path: Path) -> int:
    """Return the size of a file in the units of its ranges."""
    return sum(_list_row_groups(path)) if path.suffix == PARQUET_SUFFIX else path.stat().st_size


def read_start(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, decompressed."""
    if path.suffix not in COMPRESSED_SUFFIXES:
        with path.open("rb") as file:
            return file.read(size)
    with _open_compressed(str(path)) as (stream, _):
        return stream.read(size)


def find_cut(path: Path, offset: int, size: int) -> int:
    """Return the first place after the byte before `offset` at which a file can be cut."""
    if path.suffix in COMPRESSED_SUFFIXES:
        return size
    if path.suffix == PARQUET_SUFFIX:
        return next(end for end in accumulate(_list_row_groups(path)) if end >= offset)
    with path.open("rb") as file:
        file.seek(offset - 1)
        file.readline()
        return min(file.tell(), size)


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


def _read_compressed(file_range: FileRange) -> Iterator[TextPiece]:
    with _open_compressed(file_range.path) as (file, count):
        while block := file.read(_BLOCK_BYTES):
            yield TextPiece(block + file.readline(), count(), ends=False)
    yield TextPiece(b"", 0, ends=True)


def _read_json_lines(file_range: FileRange, text_key: str, on_bad: Callable[[BadRow], None]) -> Iterator[TextPiece]:
    if Path(file_range.path).suffix in COMPRESSED_SUFFIXES:
        with _open_compressed(file_range.path) as (file, count):
            for number, line in enumerate(file, 1):
                yield from _parse_line(line, count(), file_range, f"line {number}", text_key, on_bad)
        return
    with open(file_range.path, "rb") as file:
        file.seek(file_range.start)
        while (offset := file.tell()) < file_range.end:
            line = file.readline()
            if not line:
                raise _truncated_error(file_range)
            yield from _parse_line(line, len(line), file_range, f"the line at byte {offset}", text_key, on_bad)


def _parse_line(  # noqa: PLR0913, PLR0917
    line: bytes, size: int, file_range: FileRange, place: str, text_key: str, on_bad: Callable[[BadRow], None]
) -> Iterator[TextPiece]:
    if not line.strip():
        return
    try:
        text = find_text(json.loads(line), text_key)
    except (ValueError, RecursionError):
        text = None
    if text is None:
        on_bad(BadRow(file_range.path, place, f"is not a JSON object with text in {text_key!r}"))
    yield TextPiece(text or b"", size, ends=text is not None)


def find_text(document: Any, text_key: str) -> bytes | None:
    """Return the text of a row, or None if there is none: at the key itself, or along its parts between the dots."""
    if isinstance(document, dict) and text_key in document:
        document = document[text_key]
    else:
        for part in text_key.split("."):
            document = document.get(part) if isinstance(document, dict) else None
    if isinstance(document, str):
        return document.encode(errors="replace")
    return document if isinstance(document, bytes) else None


def _read_parquet(file_range: FileRange, text_key: str, on_bad: Callable[[BadRow], None]) -> Iterator[TextPiece]:
    path = Path(file_range.path)
    file = _open_parquet(path)
    columns = file.schema_arrow.names
    column = text_key if text_key in columns else text_key.partition(".")[0]
    if column not in columns:
        message = f"{path} has no column {column!r}"
        raise _error(message, f"name the column of the text with --text-key: {', '.join(columns)}")
    sizes = _list_row_groups(path)
    first_row = 0
    for group, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        rows = file.metadata.row_group(group).num_rows
        if file_range.start <= start < file_range.end:
            yield from _read_row_group(file, group, size, first_row, column, text_key, path, on_bad)
        first_row += rows
    if file_range.end > sum(sizes):
        raise _truncated_error(file_range)


def _read_row_group(  # noqa: PLR0913, PLR0917
    file: Any,
    group: int,
    size: int,
    first_row: int,
    column: str,
    text_key: str,
    path: Path,
    on_bad: Callable[[BadRow], None],
) -> Iterator[TextPiece]:
    rows = file.metadata.row_group(group).num_rows
    number = 0
    with _explain_damage(path):
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
            for document in batch.to_pylist():
                text = find_text(document, text_key)
                # The bytes of a row group are spread over its rows, for the progress.
                share = size * (number + 1) // rows - size * number // rows
                if text is None:
                    on_bad(BadRow(str(path), f"row {first_row + number}", f"has no text in {text_key!r}"))
                yield TextPiece(text or b"", share, ends=text is not None)
                number += 1


def _list_row_groups(path: Path) -> list[int]:
    metadata = _open_parquet(path).metadata
    return [max(1, metadata.row_group(group).total_byte_size) for group in range(metadata.num_row_groups)]


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - optional
    except ImportError as error:
        raise _missing_package(path) from error
    with _explain_damage(path):
        return parquet.ParquetFile(path)


@contextmanager
def _open_compressed(path: str) -> Iterator[tuple[gzip.GzipFile | io.BufferedReader, Callable[[], int]]]:
    """Open a compressed file; the second value counts the bytes of the file that were read since its last call."""
    with open(path, "rb") as raw, _explain_damage(Path(path)):
        counted = 0

        def count() -> int:
            nonlocal counted
            before, counted = counted, raw.tell()
            return counted - before

        if path.endswith(".gz"):
            with gzip.open(raw, "rb") as file:
                yield file, count
            return
        try:
            import pyarrow  # noqa: PLC0415 - optional
        except ImportError as error:
            raise _missing_package(Path(path)) from error
        with pyarrow.CompressedInputStream(raw, "zstd") as stream:
            yield io.BufferedReader(stream), count


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    """Turn the errors of decoders into one that names the file; other errors of the filesystem pass."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise _error(f"{path} is damaged ({error})", "copy it again, or leave it out") from error
    except OSError as error:
        if error.errno is None:  # pyarrow reports damage without a number
            raise _error(f"{path} is damaged ({error})", "copy it again, or leave it out") from error
        raise


def _missing_package(path: Path) -> ConfigError:
    return _error(f"{path} needs the package pyarrow", "install it (muster-env add pyarrow), or convert it to JSONL")


def _truncated_error(file_range: FileRange) -> ConfigError:
    return _error(f"{file_range.path} became shorter while it was read", "run the command again")


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("INPUT", message, fix)])
